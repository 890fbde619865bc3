"""`fusewire.load` and `fusewire.from_torch` have the arguments and result names of Hugging Face."""

from __future__ import annotations

import subprocess
import sys

import fusewire
import numpy as np
import pytest
import torch
from fusewire.errors import CheckpointError, ConfigurationError, InvalidInput
from fusewire.parity import parity

from tests.models.tiny_decoders import tiny_decoder
from tests.places import GPU, TORCH_DTYPES
from tests.reference import ARCHITECTURES, tiny_checkpoint
from tests.tolerance import MODEL_FP32, allowed_error


def padded_input(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(12) < torch.tensor([[12], [1], [7]])).long()
    return torch.randint(5, vocabulary, mask.shape, generator=generator), mask


@pytest.mark.parametrize("task", ["hidden", "classify", "tag", "answer", "fill"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_live_module_is_taken_over(tmp_path, architecture, task):
    reference = tiny_checkpoint(tmp_path, architecture, task)
    model = fusewire.from_torch(reference)
    ids, mask = padded_input(reference.config.vocab_size)
    ids = torch.where(mask == 1, ids, torch.tensor(reference.config.pad_token_id))
    output = model(input_ids=ids, attention_mask=mask)
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=mask)
    assert list(output) == [name for name in expected if expected[name] is not None]
    for name, value in output.items():
        assert isinstance(value, torch.Tensor)
        assert value.dtype == torch.float32
        wanted = expected[name]
        if value.shape[:2] == mask.shape and task != "classify" and name != "pooler_output":
            keep = mask.bool()
            assert not value[~keep].any()  # padding has zeros
            value, wanted = value[keep], wanted[keep]
        assert (value - wanted).abs().max() <= MODEL_FP32, name


def test_numpy_in_numpy_out(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert")
    model = fusewire.load(str(tmp_path))
    ids, mask = padded_input(reference.config.vocab_size)
    from_torch_tensors = model(ids, mask)
    output = model(ids.numpy(), mask.numpy())
    assert isinstance(output.last_hidden_state, np.ndarray)
    assert output[0] is output["last_hidden_state"] is output.to_tuple()[0]
    np.testing.assert_array_equal(output[0], from_torch_tensors.last_hidden_state.numpy())
    assert output.pooler_output.shape == (3, 64)
    with pytest.raises(AttributeError, match=r"no 'logits' here; there are last_hidden_state"):
        _ = output.logits


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "modernbert"])
def test_padding_on_any_side_changes_nothing(tmp_path, architecture):
    tiny_checkpoint(tmp_path, architecture)
    model = fusewire.load(tmp_path)
    tokens = np.arange(10, 19)
    alone = model(tokens[None]).last_hidden_state[0]
    for name, columns in {"left": range(4, 13), "scattered": [0, 1, 3, 4, 7, 8, 9, 11, 12]}.items():
        ids, mask = np.full((1, 13), 3), np.zeros((1, 13), np.int64)
        ids[0, list(columns)], mask[0, list(columns)] = tokens, 1
        output = model(ids, mask).last_hidden_state[0]
        np.testing.assert_array_equal(output[list(columns)], alone, err_msg=name)


def test_results_outlive_the_next_call(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "classify")
    model = fusewire.load(tmp_path)
    first = model(np.array([[5, 6, 7]])).logits
    kept = first.copy()
    model(np.array([[9, 8, 7, 6], [1, 2, 3, 4]]))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": np.zeros(3, int)}, r"input_ids: got shape \[3\]"),
        ({"input_ids": np.zeros((0, 3), int)}, r"input_ids: got shape \[0, 3\]"),
        ({"input_ids": np.zeros((1, 3))}, "input_ids: got dtype float64"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids: got lists of several lengths"),
        ({"attention_mask": np.ones((1, 2))}, r"attention_mask: got shape \[1, 2\]"),
        ({"attention_mask": np.array([[1, 2, 0]])}, "attention_mask: got other values"),
        ({"attention_mask": np.zeros((1, 3))}, "attention_mask: got a row of zeros"),
        ({"token_type_ids": np.zeros((1, 4), int)}, r"token_type_ids: got shape \[1, 4\]"),
        ({"token_type_ids": np.ones((1, 3), int)}, "token_type_ids: got 1, wanted 0 "),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    tiny_checkpoint(tmp_path, "distilbert", num_hidden_layers=1)
    model = fusewire.load(tmp_path)
    with pytest.raises(InvalidInput, match=message):
        model(**{"input_ids": np.array([[5, 6, 7]])} | arguments)


def test_a_device_is_a_word_or_torchs(tmp_path, gpus):
    reference = tiny_checkpoint(tmp_path, "bert")
    for device in ("auto", "cpu", reference.device):
        assert fusewire.load(tmp_path, device=device).model.place.device == "cpu"
        assert fusewire.from_torch(reference, device=device).model.place.device == "cpu"
    assert parity(tmp_path, device="auto").largest <= MODEL_FP32
    with pytest.raises(ConfigurationError, match=r"device: got 'cuda:0,1', wanted one of auto"):
        fusewire.from_torch(reference, device="cuda:0,1")


def test_what_cannot_be_loaded_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such folder"):
        fusewire.load(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match=r"model: got int, wanted a transformers model"):
        fusewire.load(3)
    with pytest.raises(ConfigurationError, match=r"device: got cuda.*, wanted"):
        fusewire.load(tmp_path, device="cuda:9")
    with pytest.raises(ConfigurationError, match=r"device: got 'tpu', wanted one of auto, cpu"):
        fusewire.load(tmp_path, device="tpu")
    with pytest.raises(ConfigurationError, match=r"dtype: got 'float16' on cpu, wanted float32"):
        fusewire.load(tmp_path, dtype="float16")
    with pytest.raises(ConfigurationError, match=r"dtype: got 'half', wanted one of auto"):
        fusewire.load(tmp_path, dtype="half")


def test_half_precision_modules_are_widened(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert").bfloat16()
    model = fusewire.from_torch(reference)
    reference = reference.float()  # the same rounded weights
    ids, mask = padded_input(reference.config.vocab_size)
    with torch.no_grad():
        expected = reference(ids, mask).pooler_output
    assert (model(ids, mask).pooler_output - expected).abs().max() <= MODEL_FP32


@pytest.mark.parametrize("task", [None, "answer"])
def test_parity_measures_the_difference(tmp_path, task):
    tiny_checkpoint(tmp_path, "electra", task or "tag")
    measured = parity(tmp_path, task, sequences=5)
    assert measured.sequences == 5
    assert measured.tokens >= 64 + 1
    names = {"start_logits", "end_logits"} if task else {"logits"}
    assert measured.differences.keys() == names
    assert 0 < measured.largest <= MODEL_FP32


def test_parity_sees_a_wrong_weight(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert")
    model = fusewire.load(tmp_path)
    with torch.no_grad():
        reference.encoder.layer[1].output.dense.bias[3] += 0.01
    reference.save_pretrained(tmp_path)
    ids, mask = padded_input(reference.config.vocab_size)
    with torch.no_grad():
        expected = reference(ids, mask).last_hidden_state
    assert (model(ids, mask).last_hidden_state - expected)[0].abs().max() > 10 * MODEL_FP32
    assert parity(tmp_path).largest <= MODEL_FP32


def test_parity_does_not_hide_a_nan(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert")
    with torch.no_grad():
        reference.encoder.layer[1].output.dense.bias[3] = torch.nan
    reference.save_pretrained(tmp_path)
    assert not parity(tmp_path).largest <= MODEL_FP32


def test_a_model_that_generates_is_refused_with_the_class_to_use(tmp_path):
    live = tiny_decoder(tmp_path, "gpt2", num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"got 'gpt2', .*; open it with LLM$"):
        fusewire.load(tmp_path)
    with pytest.raises(ConfigurationError, match=r"got 'generate', .* with fusewire.LLM, or name"):
        fusewire.load(live)


def test_embedding_tables_of_a_live_module_are_not_copied(tmp_path):
    reference = tiny_checkpoint(tmp_path, "bert")
    model = fusewire.from_torch(reference)
    before = model(np.array([[5]])).last_hidden_state
    with torch.no_grad():
        reference.embeddings.word_embeddings.weight[5, 0] += 1.0
    assert np.abs(model(np.array([[5]])).last_hidden_state - before).max() > 0.01


def test_loading_and_running_needs_no_torch(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "classify")
    code = (
        "import sys, numpy, fusewire\n"
        f"model = fusewire.load({str(tmp_path)!r})\n"
        "print(model(numpy.array([[5, 6, 7]])).logits.shape)\n"
        "assert not {'torch', 'transformers', 'safetensors'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(1, 2)", done.stderr


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_a_model_on_a_gpu_is_called_alike(tmp_path, place):
    reference = tiny_checkpoint(tmp_path, "bert")
    model = fusewire.load(tmp_path, device=place.device, dtype=place.dtype)
    ids, mask = padded_input(reference.config.vocab_size)
    output = model(ids, mask)
    with torch.no_grad():
        truth = reference(ids, mask).pooler_output.double().numpy()
        rounded = reference.to(place.device, TORCH_DTYPES[place.dtype])(
            ids.to(place.device), mask.to(place.device)
        ).pooler_output
    assert output.pooler_output.dtype == torch.float32
    pooled = output.pooler_output.numpy()
    if place.dtype == "float32":
        assert np.abs(pooled - truth).max() <= MODEL_FP32
    else:
        same = rounded.float().cpu().numpy()
        allowed = allowed_error(truth, same, place.dtype, reference.config.hidden_size)
        assert not allowed.excess(pooled)
    assert not output.last_hidden_state[~mask.bool()].any()
