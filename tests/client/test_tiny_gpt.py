"""The demo's model: its gradients are torch's, and what it saves is a Hugging Face folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import transformers
from fusewire.parity import parity
from fusewire.serving.served_files import descriptions
from fusewire.smoothing import smoothed

from tests.client.example_scripts import SCRIPTS, example
from tests.tolerance import MODEL_FP32


@pytest.fixture(scope="module")
def tiny_gpt() -> ModuleType:
    return example("tiny_gpt")


@torch.enable_grad()  # benchmarks, which have tests as well, turn it off for their process
def test_loss_and_gradients_are_those_of_transformers(tiny_gpt: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = tiny_gpt.initial(rng)
    tiny_gpt.save(tmp_path, weights, tiny_gpt.train_tokenizer(tiny_gpt.prose()[:20000]))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = rng.integers(0, tiny_gpt.VOCABULARY, (3, tiny_gpt.WINDOW + 1))
    loss, gradients = tiny_gpt.gradients(weights, ids)
    wanted = model(torch.from_numpy(ids), labels=torch.from_numpy(ids)).loss
    wanted.backward()
    assert abs(loss - float(wanted.detach())) <= MODEL_FP32
    for name, parameter in model.named_parameters():
        if not name.endswith("norm.weight"):  # these are not trained
            gradient = parameter.grad.numpy()
            atol = MODEL_FP32 * float(np.abs(gradient).max())
            np.testing.assert_allclose(gradients[name], gradient, atol=atol, rtol=0, err_msg=name)


def test_the_text_is_prose_and_training_learns_it(
    tiny_gpt: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tiny_gpt.prose()
    assert len(text) > 100_000
    ids = np.array(tiny_gpt.train_tokenizer(text[:50_000]).encode(text[:50_000]).ids)
    assert ids.max() < tiny_gpt.VOCABULARY
    monkeypatch.setattr(tiny_gpt, "STEPS", 12)
    monkeypatch.setattr(tiny_gpt, "BATCH", 4)
    losses: list[float] = []
    tiny_gpt.train(ids, losses.append)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("given", [[], ["--help"], ["a", "b"]])
def test_it_asks_for_a_folder_before_it_trains(
    tiny_gpt: ModuleType, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tiny_gpt.py", *given])
    monkeypatch.setattr(tiny_gpt, "prose", lambda: pytest.fail("it began to train"))
    with pytest.raises(SystemExit, match=r"usage: tiny_gpt\.py FOLDER"):
        tiny_gpt.main()


def learned(tiny_gpt: ModuleType, folder: Path) -> tuple[Path, Path]:
    """Trains as the demo does. Returns the model's folder and a file of the text it learned."""
    model, texts = folder / "model", folder / "texts.txt"
    subprocess.run([sys.executable, str(SCRIPTS / "tiny_gpt.py"), str(model)], check=True)
    texts.write_text("\n".join(tiny_gpt.prose().split("\n\n")[:200]))
    return model, texts


@pytest.mark.gpu
@pytest.mark.sweep
def test_8_bits_on_a_gpu_keep_what_it_learned(tiny_gpt: ModuleType, tmp_path: Path) -> None:
    """e4m3 has 3 bits of mantissa, which costs a model this small ten times as much as int8."""
    model, texts = learned(tiny_gpt, tmp_path)
    for quantize, most in (("int8", 0.01), ("fp8", 0.03)):
        found = parity(model, texts=texts, against="fp32", quantize=quantize, device="cuda")
        assert found.perplexity_ratio is not None
        assert 1e-5 < abs(found.perplexity_ratio - 1) < most, quantize


@pytest.mark.sweep
def test_int8_keeps_what_it_learned(tiny_gpt: ModuleType, tmp_path: Path) -> None:
    """Trained as the demo trains it, and asked on the text that it learned: layers, words and the
    head that shares their table are int8; the same smoothed."""
    folder, texts = learned(tiny_gpt, tmp_path)
    references = set()
    with smoothed(folder, 0.5, descriptions(folder), tmp_path, texts) as changed:
        for each in (folder, changed):
            found = parity(each, texts=texts, against="fp32", quantize="int8")
            assert found.greedy_tokens is not None
            assert found.greedy_equal is not None
            assert found.perplexity_ratio is not None
            assert found.reference_perplexity is not None
            assert found.reference_perplexity < 60  # it learned something
            assert found.largest > 0
            assert abs(found.perplexity_ratio - 1) < 0.01
            assert found.greedy_equal > 0.95 * found.greedy_tokens
            references.add(found.reference_perplexity)
    assert len(references) == 1
