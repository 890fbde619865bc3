"""Where and how precisely an engine computes, and that it records what it can."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels
from fusewire.engine.encoder import EncoderEngine
from fusewire.errors import ConfigurationError
from fusewire.models import EncoderModel
from fusewire.settings import EngineSettings

from tests.engine.counting import HIDDEN, CountingModel, answered, engine, request
from tests.reference import tiny_checkpoint
from tests.tolerance import MODEL_FP32, PADDING_SHARE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    tiny_checkpoint(folder, "bert", "hidden")
    return folder


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", "float16", "dtype: got 'float16' on cpu, wanted float32"),
        ("tpu", "auto", "device: got 'tpu'"),
        ("cuda:9", "auto", "device: got "),
    ],
)
def test_a_device_or_dtype_that_is_not_here_is_refused(folder, device, dtype, words):
    with pytest.raises(ConfigurationError, match=words):
        EncoderEngine(folder, "hidden", EngineSettings(dtype=dtype), device=device)


@pytest.mark.parametrize("graphs", [True, False])
def test_forwards_are_recorded_before_the_first_request_if_wanted(folder, monkeypatch, graphs):
    recorded = []
    monkeypatch.setattr(EncoderModel, "record_forwards", lambda *asked: recorded.append(asked))
    got = EncoderEngine(folder, "hidden", EngineSettings(graphs=graphs, max_batch_tokens=7000))
    assert recorded == [(got.model, 7000)] * graphs


def test_a_device_without_room_is_named(folder, monkeypatch):
    def full(model, max_tokens):
        raise kernels.Error("out of memory: wanted 9 bytes; held: weights 8 bytes")

    monkeypatch.setattr(EncoderModel, "record_forwards", full)
    with pytest.raises(ConfigurationError, match="cpu: out of memory: wanted 9 bytes"):
        EncoderEngine(folder, "hidden")


def test_replays_are_counted_call_by_call(tmp_path):
    class Replaying(CountingModel):
        def encode(self, batch):
            hits, misses = self.replay_counts
            known = batch.tokens in [sum(lengths) for lengths in self.seen]
            self.replay_counts = (hits + known, misses + (not known))
            return super().encode(batch)

    got = engine(tmp_path, Replaying())
    for hits in (0, 1, 1):
        [answer] = got.answer([request([1, 2, 3])])
        answered(answer, [1, 2, 3])
        assert (got.last_counts.graph_hits, got.last_counts.graph_misses) == (hits, 1 - hits)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_a_gpu_answers_as_the_cpu_does(folder, graphs):
    random = np.random.default_rng(0)
    rows = [random.integers(5, 50, n).tolist() for n in random.integers(1, 33, 40)]
    requests = [request(row) for row in rows]
    wanted = EncoderEngine(folder, "hidden").answer(requests)
    settings = EngineSettings(dtype="float32", graphs=graphs, max_batch_tokens=200)
    got = EncoderEngine(folder, "hidden", settings, device="cuda")
    for hits in (False, False, graphs):  # a shape is recorded when it comes the second time
        answers = got.answer(requests)
        for answer, right in zip(answers, wanted, strict=True):
            assert np.abs(answer[HIDDEN] - right[HIDDEN]).max() <= MODEL_FP32
        counts = got.last_counts
        assert counts.micro_batches > 2
        assert (counts.graph_hits == counts.micro_batches) == hits
        assert counts.padding_tokens <= (PADDING_SHARE * counts.tokens if graphs else 0)
