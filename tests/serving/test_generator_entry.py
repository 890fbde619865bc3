"""A model that generates, as a repository entry: its contract, its settings, its warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, GeneratorSettings, ModelSettings, model_settings
from fusewire.serving.folder_probe import probe
from fusewire.serving.probe import Probe, stored_probe
from fusewire.tasks.contract import GENERATE, RETURNED, contract

from tests.engine.generating import byte_tokenizer, tiny_folder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import edit_config, tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("gpt2"))


def test_the_entry_states_the_contract_and_is_decoupled(folder: Path, tmp_path: Path) -> None:
    entry = repository.import_folder(folder, tmp_path, name="g")
    config = model_config.read(entry / "config.pbtxt")
    inputs, outputs = contract(GENERATE, decoder=True)
    assert [each.name for each in config.input] == [each.name for each in inputs]
    assert [each.name for each in config.output] == [each.name for each in outputs]
    assert all(each.optional and not each.allow_ragged_batch for each in config.input)
    assert {f"return_{name}" for name in RETURNED} < {each.name for each in inputs}
    assert {each.name for each in outputs} == {"text_output", *RETURNED} - {"alignment"}
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")


def test_the_entry_of_a_model_with_an_encoder_says_that_it_aligns(tmp_path: Path) -> None:
    (folder := tmp_path / "bart").mkdir()
    tiny_seq2seq(folder, "bart")
    byte_tokenizer(folder)
    config = model_config.read(
        repository.import_folder(folder, tmp_path / "root", name="b") / "config.pbtxt"
    )
    assert [each.name for each in config.output] == [each.name for each in contract(GENERATE)[1]]
    assert "alignment" in {each.name for each in config.output}


def test_settings_come_back_as_they_were_given(folder: Path, tmp_path: Path) -> None:
    settings = {"max_sequences": 3, "prefix_caching": False, "kv_cache_mib": 7, "threads": 2}
    entry = repository.import_folder(folder, tmp_path, name="g", settings=dict(settings))
    found = model_config.check(model_config.read(entry / "config.pbtxt"), "g")
    assert found == GeneratorSettings(task="generate", **settings)
    assert found.engine() == GenerationSettings(**settings)
    assert isinstance(model_config.settings_of({"task": {"string_value": "embed"}}), ModelSettings)


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", "auto", "kv_cache_dtype: got 'fp8' on cpu, wanted auto"),
        ("cuda", "float32", "kv_cache_dtype: got 'fp8' on a GPU with dtype float32, wanted auto"),
    ],
)
def test_a_cache_without_kernels_is_refused(
    folder: Path, tmp_path: Path, gpus: list[int], device: str, dtype: str, words: str
) -> None:
    gpus.append(0)
    settings = {"kv_cache_dtype": "fp8", "dtype": dtype}
    with pytest.raises(ConfigurationError, match=words):
        repository.import_folder(
            folder, tmp_path, name="g", settings=settings, deployment=Deployment(device=device)
        )
    assert not list(tmp_path.iterdir())
    settings = {"kv_cache_dtype": "fp8"}
    entry = repository.import_folder(
        folder, tmp_path, name="g", settings=settings, deployment=Deployment(device="cuda")
    )
    found = model_config.check(model_config.read(entry / "config.pbtxt"), "g")
    assert found.engine() == GenerationSettings(kv_cache_dtype="fp8")


@pytest.mark.parametrize(("task", "name"), [("generate", "pooling"), ("embed", "max_sequences")])
def test_a_setting_of_other_tasks_is_refused(task: str, name: str) -> None:
    values = {"task": {"string_value": task}, name: {"string_value": "mean"}}
    with pytest.raises(
        ConfigurationError, match=f"{name}: got 'mean' for the task {task}"
    ) as error:
        model_config.settings_of(values)
    assert "reloads" not in str(error.value)  # no one's but the watchdog's


@pytest.mark.parametrize("field", ["max_batch_size", "queue_delay_us"])
def test_what_only_batches_of_encoders_have_is_refused(
    folder: Path, tmp_path: Path, field: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}: got 3 for the task generate"):
        repository.import_folder(
            folder, tmp_path, name="g", deployment=Deployment.model_validate({field: 3})
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [tiny_folder, lambda folder: tiny_checkpoint(folder, "bert")])
def test_a_model_that_could_not_be_loaded_is_not_imported(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "source")
    edit_config(tmp_path / "source", quantization_config={"bits": 4})
    with pytest.raises(CheckpointError, match=r"config\.json: quantization_config: got"):
        repository.import_folder(tmp_path / "source", tmp_path / "repository", name="g")
    assert not (tmp_path / "repository").exists()


def test_a_chat_template_comes_along(folder: Path, tmp_path: Path) -> None:
    source = tiny_folder(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    entry = repository.import_folder(source, tmp_path / "repository", name="g")
    assert (entry / "1" / "chat_template.jinja").read_text() == "{{ messages }}"


def test_the_probe_is_one_step_before_all_others(folder: Path) -> None:
    tensors = probe(folder, GeneratorSettings(task=GENERATE))
    asked = Probe(GENERATE, tuple(tensors))
    assert asked.path == "generate"
    assert asked.json()["input_ids"] == [0]
    assert '"max_new_tokens": 1' in str(asked.json()["sampling_parameters"])


def test_an_encoders_probe_is_a_plain_inference(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "bert")
    asked = Probe("embed", tuple(probe(tmp_path, ModelSettings(task="embed"))))
    assert asked.path == "infer"
    assert list(asked.json()) == ["inputs"]


@pytest.mark.parametrize("task", ["embed", "answer", "generate"])
def test_an_entry_keeps_the_probe_so_that_it_is_read_without_a_tokenizer(
    tmp_path: Path, folder: Path, task: str
) -> None:
    if task != GENERATE:
        folder = tmp_path / "source"
        tiny_checkpoint(folder, "bert", task)
    entry = repository.import_folder(folder, tmp_path / "repository", name="m")
    (entry / "1" / "tokenizer.json").unlink()
    assert stored_probe(entry, task) == probe(folder, model_settings({"task": task}))


def test_an_entry_written_by_hand_is_probed_with_ids(tmp_path: Path) -> None:
    [tensor] = stored_probe(tmp_path, "embed")
    assert tensor.name == "input_ids"
    assert stored_probe(tmp_path, "fill") == []
