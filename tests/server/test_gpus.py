"""What only GPUs have: 16 bits, recorded forwards, several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fusewire import devices
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server

from tests.server.asking import Asker, ids, until
from tests.server.test_batching import embeddings, random_ids
from tests.tolerance import allowed_error

pytestmark = pytest.mark.gpu

LENGTHS = (3, 17, 64, 65, 128, 200, 256)


@pytest.fixture(scope="module")
def gpu_asker(
    tmp_path_factory: pytest.TempPathFactory, minilm: Path, tiny: Callable[..., Path]
) -> Iterator[Asker]:
    """MiniLM as an operator gets it (`half`), in bfloat16, without graphs; and one on all GPUs."""
    root = tmp_path_factory.mktemp("gpus")
    each = "cuda:" + ",".join(map(str, devices.found()))

    def add(name: str, folder: Path, device: str = "auto", **settings: object) -> None:
        deployment = Deployment(device=device)
        import_folder(folder, root, name=name, settings=settings, deployment=deployment, link=True)

    add("half", minilm)
    add("bfloat16", minilm, dtype="bfloat16")
    add("no-graphs", minilm, graphs=False)
    add("everywhere", tiny("bert", "embed"), each, dtype="float32")
    settings = ServerSettings(
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        log_level="error",
        watch_interval_s=3600,  # the watchdog's questions would be counted too
    )
    with Server([root], settings) as server, Asker(server, "cuda") as asker:
        yield asker


MODELS = [("half", torch.float16), ("no-graphs", torch.float16), ("bfloat16", torch.bfloat16)]


@pytest.mark.parametrize(("model", "dtype"), MODELS)
def test_16_bits_err_no_more_than_torch_does(
    gpu_asker: Asker, minilm: Path, model: str, dtype: torch.dtype
) -> None:
    load = transformers.AutoModel.from_pretrained
    rows = [random_ids(length) for length in LENGTHS]
    right = embeddings(load(minilm, attn_implementation="eager").eval(), rows)
    halves = load(minilm, attn_implementation="eager", dtype=dtype).eval().to("cuda")
    same = []
    for row in rows:
        with torch.no_grad():
            states = halves(torch.tensor([row], device="cuda")).last_hidden_state
        same.append(torch.nn.functional.normalize(states.mean(1).float()).cpu().numpy())
    got = [gpu_asker.ask(model, ids(row))["embedding"] for row in rows]
    width = halves.config.hidden_size
    allowed = allowed_error(
        right.astype(np.float64), np.concatenate(same), str(dtype)[6:], max(width, *LENGTHS)
    )
    assert not allowed.excess(np.concatenate(got))


def test_recorded_forwards_are_replayed_and_counted(gpu_asker: Asker) -> None:
    def counted(model: str) -> tuple[float, float]:
        hits, misses = (f"fusewire_graph_{name}_total" for name in ("hits", "misses"))
        return gpu_asker.metric(hits, model=model), gpu_asker.metric(misses, model=model)

    hits, misses = counted("half")
    for length in LENGTHS:
        gpu_asker.ask("half", ids(random_ids(length)))
    until(lambda: counted("half") == (hits + len(LENGTHS), misses))
    assert counted("no-graphs") == (0, 0)


def test_memory_is_the_gpus(gpu_asker: Asker) -> None:
    name = "fusewire_allocator_allocated_bytes"
    weights = 22_000_000 * 2
    gpu_asker.ask("half", ids([101, 7592, 102]))
    until(lambda: gpu_asker.metric(name, model="half", device="cuda:0") > weights)
    assert gpu_asker.metric(name, device="cpu") == 0
    assert gpu_asker.metric("nv_gpu_memory_used_bytes") > weights


def test_an_instance_on_every_gpu(gpu_asker: Asker) -> None:
    gpus = devices.found()
    stubs = [stub for stub in gpu_asker.server.process.stubs() if stub.model == "everywhere"]
    assert len(stubs) == len(gpus)
    answers = gpu_asker.together("everywhere", [ids([5, 6, 7])] * 64)
    for answer in answers:
        assert isinstance(answer, dict), answer
        gpu_asker.same(answer["embedding"], answers[0]["embedding"])  # type: ignore[index]
    name = "fusewire_allocator_allocated_bytes"
    for gpu in gpus:
        assert gpu_asker.metric(name, model="everywhere", device=f"cuda:{gpu}") > 0
