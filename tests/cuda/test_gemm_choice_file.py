"""The file of GEMM timings: it is read as it was written, and a broken one is harmless."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not COMPILER:
        pytest.skip("no C++ compiler here")
    built = tmp_path_factory.mktemp("gemm_choice_file") / "program"
    sources = [
        ROOT / "csrc/cuda/gemm/gemm_choice_file.cu",
        Path(__file__).parent / "gemm_choice_file.cc",
    ]
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, "-x", "c++", *sources, "-o", built], check=True)
    return built


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Run:
    def call(*words: object, cache: Path = tmp_path / "new" / "folder") -> str:
        environment = {"FUSEWIRE_CACHE": str(cache)}
        arguments = [str(program), *map(str, words)]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    return call


def test_choices_come_back_as_they_were_written(run: Run):
    run("write", 1, 300)
    assert run("read") == "300"


def test_what_another_process_added_stays(run: Run):
    run("write", 1, 10)
    run("write", 11, 12)
    assert run("read") == "12"


def test_a_damaged_line_is_left_out_and_no_other(run: Run):
    run("write", 1, 20)
    path = Path(run("path"))
    whole = path.read_bytes()
    line = whole.splitlines(keepends=True)[5]
    begin = whole.index(line)
    for place in range(begin, begin + len(line) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert run("read") == "19", place - begin


def test_a_file_cut_short_gives_what_is_left(run: Run):
    run("write", 1, 20)
    path = Path(run("path"))
    path.write_bytes(path.read_bytes()[:-40] + b"x" * 5000)
    assert run("read") == "19"


def test_processes_take_turns_and_lose_nothing(program: Path, run: Run, tmp_path: Path):
    environment = {"FUSEWIRE_CACHE": str(tmp_path / "new" / "folder")}
    running = [
        subprocess.Popen([program, "slowly", str(rows)], env=environment) for rows in range(1, 7)
    ]
    assert [process.wait(30) for process in running] == [0] * 6
    assert run("read") == "6"


def test_a_folder_that_cannot_be_written_is_no_error(run: Run):
    run("write", 1, 3, cache=Path("/proc/no/such"))
    assert run("read", cache=Path("/proc/no/such")) == "0"
    run("slowly", 1, cache=Path("/proc/self"))


@pytest.mark.parametrize(
    ("rows", "nearest"),
    [
        (1, 0),
        (2, 8),
        (8, 8),
        (16, 8),
        (24, 64),
        (64, 64),
        (72, 64),
        (256, 64),
        (264, 0),
        (1016, 0),
        (1024, 4096),
        (16384, 4096),
        (20480, 0),
    ],
)
def test_an_unknown_bucket_takes_the_timed_choice_of_the_nearest(run: Run, rows: int, nearest: int):
    assert run("nearest", rows) == str(nearest)


def test_an_empty_setting_means_no_file(program: Path):
    done = subprocess.run(
        [program, "path"], env={"FUSEWIRE_CACHE": ""}, capture_output=True, check=True
    )
    assert done.stdout.strip() == b""
