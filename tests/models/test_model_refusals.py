"""A folder or a batch that a model does not support is rejected, by name and value."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fusewire.batch import Batch, Sequence
from fusewire.errors import CheckpointError, ConfigurationError, InvalidInput
from fusewire.models import load_model, read_config, tasks_of
from safetensors.numpy import load_file, save_file

from tests.models.oracle import random_sequences
from tests.reference import ARCHITECTURES, edit_config, tiny_checkpoint


def edit_weights(folder, edit) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def rename(tensors: dict, change) -> None:
    for name in list(tensors):
        tensors[change(name)] = tensors.pop(name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_missing_tensor_is_named(tmp_path, architecture):
    tiny_checkpoint(tmp_path, architecture, "classify")
    name = sorted(load_file(tmp_path / "model.safetensors"))[-1]
    edit_weights(tmp_path, lambda tensors: tensors.pop(name))
    short = name.split(".", 1)[1]  # messages have names without the base model's prefix
    with pytest.raises(CheckpointError, match=f"missing: .*{short}"):
        load_model(tmp_path, "classify")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_leftover_tensor_is_named(tmp_path, architecture):
    tiny_checkpoint(tmp_path, architecture, "embed")
    edit_weights(tmp_path, lambda tensors: tensors.update({"encoder.extra": np.ones(2, "f")}))
    with pytest.raises(CheckpointError, match=r"unexpected: 'encoder.extra'"):
        load_model(tmp_path, "embed")


def test_a_layer_too_many_or_too_few_is_refused(tmp_path):
    tiny_checkpoint(tmp_path, "bert", num_hidden_layers=2)
    edit_config(tmp_path, num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"unexpected: 'encoder.layer.1\..* and \d+ more"):
        load_model(tmp_path, "embed")
    edit_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"missing: encoder.layer.2\..* and \d+ more"):
        load_model(tmp_path, "embed")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    tiny_checkpoint(tmp_path, "bert", hidden_size=64)
    edit_config(tmp_path, vocab_size=1000)
    wanted = r"embeddings.word_embeddings.weight: got \[\d+, 64\], wanted \[1000, 64\]"
    with pytest.raises(CheckpointError, match=wanted):
        load_model(tmp_path, "embed")


def test_a_head_that_the_checkpoint_lacks_is_named(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "embed")
    with pytest.raises(CheckpointError, match=r"missing: classifier.weight \[2, 64\]"):
        load_model(tmp_path, "classify")


def test_integer_weights_are_refused(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    name = "encoder.layer.0.output.dense.weight"
    edit_weights(tmp_path, lambda t: t.update({name: t[name].astype(np.int8)}))
    with pytest.raises(CheckpointError, match=f"{name}: got I8 .quantised"):
        load_model(tmp_path, "embed")


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
        ("bert", "hidden_act", "mish"),
        ("bert", "hidden_act", 3),
        ("bert", "pruned_heads", {"0": [1]}),
        ("bert", "quantization_config", {"bits": 4}),
        ("bert", "layer_norm_eps", -1.0),
        ("bert", "layer_norm_eps", "small"),
        ("bert", "num_attention_heads", 5),
        ("bert", "num_attention_heads", 0),
        ("bert", "num_hidden_layers", 10**9),
        ("bert", "hidden_size", 64.0),
        ("bert", "vocab_size", True),
        ("bert", "tie_word_embeddings", "yes"),
        ("bert", "id2label", {"0": "a", "2": "b"}),
        ("bert", "id2label", "LABELS"),
        ("bert", "model_type", "jina"),
        ("bert", "model_type", None),
        ("roberta", "pad_token_id", -1),
        ("roberta", "pad_token_id", 10**6),
        ("distilbert", "activation", "laplace"),
        ("mpnet", "relative_attention_num_buckets", 16),
        ("albert", "num_hidden_groups", 100),
        ("modernbert", "classifier_pooling", "max"),
        ("modernbert", "layer_types", ["full_attention"]),
        ("modernbert", "layer_types", ["full_attention", "linear_attention"]),
        ("modernbert", "rope_scaling", {"type": "yarn"}),
        ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "yarn"}}),
        ("modernbert", "local_attention", 1),
        ("modernbert", "max_position_embeddings", 10**12),
    ],
)
def test_an_option_that_changes_the_result_is_refused(tmp_path, architecture, key, value):
    tiny_checkpoint(tmp_path, architecture, "fill")
    edit_config(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=f"^config.json: {key}: got .*, wanted .*; "):
        load_model(tmp_path, "fill")


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_size_is_never_guessed(tmp_path, key):
    tiny_checkpoint(tmp_path, "bert")
    edit_config(tmp_path, **{key: ...})
    with pytest.raises(CheckpointError, match=f"config.json: {key}: got nothing"):
        load_model(tmp_path, "embed")


def test_a_folder_without_configuration_is_refused(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config.json in the folder"):
        load_model(tmp_path, "embed")


def test_an_unknown_task_is_refused(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    with pytest.raises(ConfigurationError, match=r"task: got 'translate', wanted one of embed"):
        load_model(tmp_path, "translate")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("task", ["embed", "classify", "tag", "answer", "fill"])
def test_the_task_is_read_from_the_class_name(tmp_path, architecture, task):
    tiny_checkpoint(tmp_path, architecture, task, num_hidden_layers=1)
    assert tasks_of(read_config(tmp_path)) == task


@pytest.mark.parametrize(
    "name", ["BertForMultipleChoice", "RobertaModel", "JinaBertModel", "Model", None]
)
def test_a_class_without_a_task_is_refused(name):
    with pytest.raises(CheckpointError, match=r"architectures: got .*wanted one of BertModel"):
        tasks_of({"model_type": "bert", "architectures": [name]})


def test_labels_are_listed_by_index(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "tag", id2label={2: "C", 0: "A", 1: "B"})
    assert load_model(tmp_path, "tag").id2label == ["A", "B", "C"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tiny_checkpoint(folder, "bert", max_length=40)
    return load_model(folder, "embed")


@pytest.mark.parametrize(
    ("ids", "types", "message"),
    [
        ([3, -1], [0, 0], "input_ids: got -1, wanted 0.."),
        ([3, 2**40], [0, 0], f"input_ids: got {2**40}, wanted 0.."),
        ([3, 4], [0, 2], "token_type_ids: got 2, wanted 0..1"),
        ([3] * 41, [0] * 41, "input_ids: got 41 tokens, wanted at most 40"),
    ],
)
def test_a_batch_out_of_range_never_reaches_a_kernel(model, ids, types, message):
    good = random_sequences(model, [5])
    bad = Sequence(np.array(ids, np.int64), np.array(types, np.int32))
    with pytest.raises(InvalidInput, match=message):
        model.encode(Batch.pack([*good, bad]))


def test_a_model_without_a_head_says_so(model):
    batch = Batch.pack(random_sequences(model, [5]))
    with pytest.raises(ConfigurationError, match=r"loaded without a head"):
        model.logits(model.encode(batch), batch)


def test_damaged_weight_files_never_crash_the_loader(tmp_path):
    tiny_checkpoint(tmp_path, "bert", num_hidden_layers=1)
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    rng = random.Random(5)
    refused = 0
    for _ in range(100):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(header)] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            load_model(tmp_path, "embed")
        except CheckpointError:
            refused += 1
    assert refused > 80
