"""Models whose layers have 8-bit weights on a GPU, float8_e4m3 or int8, answer nearly as in 16
bits, captured or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import transformers
from fusewire import kernels
from fusewire.errors import ConfigurationError
from fusewire.models import load_decoder, load_model
from fusewire.placement import Placement
from transformers.pytorch_utils import Conv1D

from tests.models.oracle import fusewire_answers, random_sequences
from tests.models.paged_texts import PagedTexts
from tests.models.tiny_decoders import tiny_decoder
from tests.places import GPU_HALVES
from tests.reference import tiny_checkpoint

LEAST_COSINE = 0.99  # of tiny random models, whose few channels do not average errors out
ON_GPUS = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)


@pytest.fixture(params=["fp8", "int8"])
def quantize(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def bytewise(place: Placement, quantize: str) -> Iterator[Placement]:
    """Yields a placement with 8-bit weights and the kernels that tuning selects."""
    form = {"fp8": "float8_e4m3", "int8": "int8"}[quantize]
    if form not in kernels.weight_formats(place.dtype, place.stream):
        pytest.skip(f"this GPU has no kernels for {form}")
    found = Placement(place.device, place.dtype, quantize)
    with found.tuning():
        yield found


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    products: np.ndarray = (one * other).sum(-1)
    return products / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


def rounded_by_torch(folder, texts, quantize) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns each text's logits by transformers, exact and with rows and layers' weights rounded
    to the format, which is the error of the format itself."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        top = x.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        if quantize == "int8":
            return (x * (127 / top)).round() * (top / 127)
        return (x * (448 / top)).to(torch.float8_e4m3fn).float() * (top / 448)

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits() -> list[np.ndarray]:
        with torch.no_grad():
            return [model(torch.tensor([text])).logits[0].numpy() for text in texts]

    exact = logits()
    for name, module in model.named_modules():
        if name == "lm_head" or not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        turned = isinstance(module, Conv1D)
        weight = module.weight.data.T if turned else module.weight.data
        module.weight.data = rounded(weight).T if turned else rounded(weight)
        module.register_forward_pre_hook(lambda _, args: (rounded(args[0]), *args[1:]))
    return list(zip(exact, logits(), strict=True))


@ON_GPUS
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_an_encoder_answers_nearly_as_in_16_bits(tmp_path, architecture, place, bytewise):
    tiny_checkpoint(tmp_path, architecture, "hidden")
    models = [load_model(tmp_path, "hidden", each) for each in (place, bytewise)]
    assert set(bytewise.formats.values()) == {bytewise.precision.layers}
    sequences = random_sequences(models[0], [3, 60, 1, 33])
    exact, quantized = (fusewire_answers(model, sequences, "hidden") for model in models)
    for one, other in zip(exact, quantized, strict=True):
        found = cosines(one["last_hidden_state"], other["last_hidden_state"])
        assert not np.array_equal(one["last_hidden_state"], other["last_hidden_state"])
        assert found.mean() >= LEAST_COSINE


@ON_GPUS
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2"])
def test_recorded_steps_of_a_decoder_are_the_launched_ones(
    tmp_path, model_type, place, bytewise, quantize
):
    tiny_decoder(tmp_path, model_type)
    exact, quantized = (load_decoder(tmp_path, each) for each in (place, bytewise))

    texts_of: dict[int, list[int]] = {}

    def steps(model, record: bool) -> list[np.ndarray]:
        rng, texts = np.random.default_rng(0), PagedTexts(model, 12)
        texts_of.clear()

        def ids(i: int, count: int) -> tuple[int, list[int]]:
            new = rng.integers(0, model.vocab_size, count).tolist()
            texts_of.setdefault(i, []).extend(new)
            return i, new

        if record:
            model.record_steps(texts.cache, 12, max_tokens=40)
        answers = texts.step([ids(i, 1 + i) for i in range(12)])
        for _ in range(6):
            answers += texts.step([ids(i, 1) for i in range(12)])
        assert not record or model._replays.hits > 0
        return answers

    launched, recorded = steps(quantized, False), steps(quantized, True)
    for one, other in zip(launched, recorded, strict=True):
        np.testing.assert_array_equal(one, other)
    found = [cosines(*pair).mean() for pair in zip(steps(exact, False), launched, strict=True)]
    usual = [
        cosines(*pair).mean() for pair in rounded_by_torch(tmp_path, texts_of.values(), quantize)
    ]
    assert 1 - np.mean(found) <= 2 * (1 - np.mean(usual))


@ON_GPUS
def test_matrices_that_are_left_out_stay_as_they_are(tmp_path, place, bytewise, quantize):
    tiny_decoder(tmp_path, "llama")
    load_decoder(tmp_path, bytewise)
    assert "lm_head" not in bytewise.formats  # the head of the vocabulary
    skipped = min(bytewise.formats)
    other = Placement(bytewise.device, bytewise.dtype, quantize, {skipped})
    load_decoder(tmp_path, other)
    assert [n for n, stored in other.formats.items() if stored == place.dtype] == [skipped]


@ON_GPUS
def test_a_gpu_without_it_refuses_it_by_name(place, quantize, monkeypatch):
    monkeypatch.setattr(kernels, "weight_formats", lambda dtype, stream: [dtype])
    wanted = rf"quantize: got '{quantize}' on cuda:0, which has kernels for \w+ weights alone"
    with pytest.raises(ConfigurationError, match=wanted):
        Placement("cuda", place.dtype, quantize)


def test_a_cpu_refuses_it_by_name():
    with pytest.raises(ConfigurationError, match="quantize: got 'fp8' on cpu, wanted none or int8"):
        Placement("cpu", quantize="fp8")


def test_torch_has_the_reference():
    assert torch.finfo(torch.float8_e4m3fn).max == 448
