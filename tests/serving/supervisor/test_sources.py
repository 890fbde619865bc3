"""What `serve` is given: repositories, folders, ids; and a sentence for everything else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.serving.config import Deployment
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.source_process import collect_apart
from fusewire.serving.supervisor.sources import Collected, Source, collect, source_of

from tests.engine.generating import tiny_folder
from tests.reference import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_checkpoint(folder, "bert", "embed")
    return folder


def collected(tmp_path: Path, *sources: Path | str) -> Collected:
    on_cpu = Deployment(device="cpu")
    given = [source_of(source, deployment=on_cpu) for source in sources]
    return collect(given, tmp_path / "imported")


def test_a_folder_is_imported_under_its_name_or_the_given_one(folder: Path, tmp_path: Path) -> None:
    found = collected(tmp_path, folder, f"other={folder}")
    assert found == ([tmp_path / "imported"], ["tiny", "other"], [])
    assert (tmp_path / "imported" / "other" / "1").resolve() == folder.resolve()


def test_a_repository_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    import_folder(folder, tmp_path / "repository", name="m", deployment=Deployment(device="cpu"))
    found = collected(tmp_path, str(tmp_path / "repository"), folder)
    assert found.repositories == [tmp_path / "repository", tmp_path / "imported"]
    assert found.models == ["m", "tiny"]


def test_a_model_in_a_repository_that_nothing_serves_is_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = tmp_path / "repository"
    import_folder(folder, repository, name="served")
    for raw in (repository / "raw", repository / "versioned" / "1", repository / "notes"):
        raw.mkdir(parents=True)
    for raw in (repository / "raw", repository / "versioned" / "1"):
        (raw / "config.json").write_text("{}")
    assert collect([Source(repository)], tmp_path / "imported").models == ["served"]
    named = [record.getMessage().split(" in ")[0] for record in caplog.records]
    assert named == ["models: got raw", "models: got versioned"]


def test_settings_that_nothing_would_have_are_refused(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    import_folder(folder, repository, name="m", deployment=Deployment(device="cpu"))
    given = source_of(repository, {"slo_ms": 500.0}, Deployment(device="cpu"))
    wanted = r"^slo_ms, device: got settings for the repository .*config\.pbtxt$"
    with pytest.raises(ConfigurationError, match=wanted):
        collect([given], tmp_path / "imported")
    beside = source_of(folder, {"slo_ms": 500.0})
    assert collect([given, beside], tmp_path / "imported").models == ["m", "tiny"]


def test_settings_of_all_models_are_those_of_the_models_that_have_them(
    folder: Path, tmp_path: Path
) -> None:
    """What none has is refused, and so is what one model alone was given."""
    writer = tiny_folder(tmp_path / "writer")
    settings: dict[str, object] = {"kv_cache_mib": 3, "pooling": "cls", "slo_ms": 500.0}
    deployment = {"device": "cpu", "max_batch_size": 9}
    both = [Source(each).overridden(settings, deployment) for each in (folder, writer)]
    assert collect_apart(both, tmp_path / "apart").models == ["tiny", "writer"]
    held = {
        name: {
            key
            for key in ("kv_cache_mib", "pooling", "slo_ms", "max_batch_size: 9")
            if key in (tmp_path / "apart" / name / "config.pbtxt").read_text()
        }
        for name in ("tiny", "writer")
    }
    assert held == {
        "tiny": {"pooling", "slo_ms", "max_batch_size: 9"},
        "writer": {"kv_cache_mib", "slo_ms"},
    }
    own = Source(folder, settings={"kv_cache_mib": 3})
    for sources in (both[:1], [*both[:1], replace(both[0], name="other")], [own, both[1]]):
        with pytest.raises(ConfigurationError, match=r"^kv_cache_mib: got .3. for the task embed"):
            collect(sources, tmp_path / "imported")
    with pytest.raises(ConfigurationError, match=r"^max_batch_size: got 9 for the task generate"):
        collect([both[1].without({"pooling"})], tmp_path / "imported")


def test_a_repository_whose_path_a_shell_would_split_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "my models"
    import_folder(folder, repository, name="m", deployment=Deployment(device="cpu"))
    with pytest.raises(ConfigurationError, match=r"^model repository: got .* without ' '"):
        collect([source_of(repository)], tmp_path / "imported")


def test_a_name_is_served_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="got the name tiny twice"):
        collected(tmp_path, folder, folder)


def snapshot(cache: Path, model: Path) -> Path:
    """As the Hugging Face cache holds owner/tiny: links to blobs, two levels up."""
    repository = cache / "models--owner--tiny"
    path = repository / "snapshots" / ("0" * 40)
    path.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(model.iterdir())):
        (repository / "blobs" / str(number)).write_bytes(file.read_bytes())
        (path / file.name).symlink_to(f"../../blobs/{number}")
    return path


@pytest.mark.parametrize("link", [False, True])
def test_a_snapshot_of_the_cache_is_imported_under_its_ids_name(
    folder: Path, tmp_path: Path, link: bool
) -> None:
    path = snapshot(tmp_path / "hub", folder)
    entry = import_folder(path, tmp_path / "repository", link=link)
    assert entry.name == "tiny"
    weights = (entry / "1" / "model.safetensors").read_bytes()
    assert weights == (folder / "model.safetensors").read_bytes()
    assert (entry / "1").is_symlink() == link
    assert any(file.is_symlink() for file in (entry / "1").iterdir()) == link
    assert collected(tmp_path, path).models == ["tiny"]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ([], "source: got an empty folder, wanted config.json with model.safetensors"),
        (["config.json", "pytorch_model.bin"], "got pytorch_model.bin .not read: .*convert it"),
        (["tiny.gguf"], r"got tiny.gguf \(the GGUF format"),
        (["model.onnx", "tokenizer.json"], r"got model.onnx \(an ONNX graph"),
        (["config.json", "onnx/model.onnx"], r"got onnx/model.onnx \(an ONNX graph"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter.*merge it into"),
        (["notes.txt"], "no config.json in the folder"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "name="])
def test_a_folder_that_is_no_model_says_what_it_is(
    folder: Path, tmp_path: Path, names: list[str], what: str, prefix: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in names:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=what) as error:
        collected(tmp_path, f"{prefix}{source}")
    assert str(error.value).count("source") == 1


@pytest.mark.parametrize("prefix", ["", "name="])
def test_a_missing_folder_is_named(tmp_path: Path, prefix: str) -> None:
    missing = tmp_path / "missing" / "path"
    with pytest.raises(CheckpointError, match=f"^{missing}: no such folder"):
        collected(tmp_path, f"{prefix}{missing}")


@pytest.mark.parametrize("prefix", ["", "name="])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors", "got a file, wanted a Hugging Face model folder; give its parent"),
        ("tiny.gguf", "the GGUF format of llama.cpp"),
    ],
)
def test_a_file_is_no_folder(tmp_path: Path, name: str, what: str, prefix: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=what):
        collected(tmp_path, f"{prefix}{tmp_path / name}")


def test_another_process_collects_the_same_and_passes_on_what_it_warns_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=lambda folder, names: {"tokenizer.json"})
    settings: dict[str, object] = {"max_length": 8}
    source = source_of(f"one={bare}", settings, Deployment(device="cpu", instances=2))
    found = collect_apart([source], tmp_path / "apart")
    assert found == collect([source], tmp_path / "here")._replace(repositories=[tmp_path / "apart"])
    written = [tmp_path / where / "one" / "config.pbtxt" for where in ("apart", "here")]
    assert written[0].read_text() == written[1].read_text()
    warned = [record for record in caplog.records if "has no tokenizer" in record.message]
    assert len(warned) == 2


def test_errors_of_another_process_keep_their_kind_and_words(tmp_path: Path) -> None:
    for source, kind in ((f"a b={tmp_path}", ConfigurationError), (tmp_path, CheckpointError)):
        with pytest.raises(kind) as here:
            collect([source_of(source)], tmp_path / "imported")
        with pytest.raises(kind) as apart:
            collect_apart([source_of(source)], tmp_path / "imported")
        assert (type(apart.value), str(apart.value)) == (type(here.value), str(here.value))
