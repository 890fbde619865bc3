"""What `pytest --each-value` leaves of parametrised tests."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

from tests.each_value import chosen


def case(test: str, on_gpu: bool = False, **params: Any) -> Any:
    call = {"callspec": SimpleNamespace(params=params)} if params else {}
    name = f"{test}[{'-'.join(map(str, params.values()))}]"
    marker = object() if on_gpu else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: marker, **call)


def left_of(*cases: Any) -> list[str]:
    return [item.nodeid for item in chosen(cases)]


def test_values_are_not_tested_in_all_combinations() -> None:
    cases = [case("t", name=name, size=size) for name, size in product("ab", (1, 2, 3))]
    assert left_of(*cases) == ["t[a-1]", "t[a-2]", "t[a-3]", "t[b-1]"]


def test_each_value_is_tested_on_each_target() -> None:
    cases = [case("t", name=name, place=place) for name, place in product("ab", ("avx2", "avx512"))]
    assert left_of(*cases) == ["t[a-avx2]", "t[a-avx512]", "t[b-avx2]", "t[b-avx512]"]


def test_what_may_be_skipped_stands_for_nothing_else() -> None:
    cases = case("t", on_gpu=True, device="cuda", size=1), case("t", device="cpu", size=1)
    assert left_of(*cases) == ["t[cuda-1]", "t[cpu-1]"]


def test_values_need_not_be_hashable() -> None:
    shape: list[int] = []
    assert left_of(case("t", shape=shape), case("t", shape=shape)) == ["t[[]]"]


def test_tests_do_not_stand_for_each_other() -> None:
    assert left_of(case("t", size=1), case("u", size=1), case("v")) == ["t[1]", "u[1]", "v[]"]
