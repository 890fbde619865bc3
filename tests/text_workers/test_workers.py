"""Whatever a folder's template or tokenizer does, it is stopped in time, and other requests do not
wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import CheckpointError, InvalidInput, Unavailable
from fusewire.text_workers import worker, workers
from fusewire.text_workers.workers import LONG_BYTES, TextWorkers
from fusewire.worker_processes import process

from tests.text_workers.folders import (
    DOUBLED,
    HARM,
    MULTIPLIED,
    SLOW_WORDS,
    STRIP,
    SUM,
    backtracking,
    give_harm_a_second,
    grown,
    text_folder,
)

TIMEOUT_S = 60
# A second, plus the time of a busy machine to end the process: less than the product's own
# deadline.
ENDED_S = 9.0
MIB = 1 << 20


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., TextWorkers]]:
    """started(template): text workers of a folder with this template."""
    running: list[TextWorkers] = []

    def start(template: str | None = "{{ messages[-1].content }}", **given: Any) -> TextWorkers:
        folder = text_folder(tmp_path / str(len(running)), template)
        running.append(TextWorkers(folder, max_length=512, **given))
        return running[-1]

    yield start
    for each in running:
        each.close()


def chat(workers: TextWorkers, content: str = "hi") -> Future[list[int]]:
    messages = [{"role": "user", "content": content}]
    return workers.submit("conversation", "messages", messages=messages)


def pid(workers: TextWorkers) -> int:
    assert workers._short._process is not None
    return workers._short._process.pid


def test_methods_answer_as_in_this_process(started: Callable[..., TextWorkers]) -> None:
    made = started()
    assert made.description() == {"has_tokenizer": True, "has_template": True, "max_length": None}
    [h, i] = ids = made.submit("ids", "prompt", text="hi", special_tokens=True).result(TIMEOUT_S)
    answers = {
        "conversation": {"messages": [{"role": "user", "content": "hi"}]},
        "last_tokens": {"text": "hi", "most": 1, "special_tokens": False},
        "text": {"tokens": ids},
        "pieces": {"tokens": ids},
        "echo": {"prompt": ids, "special_tokens": False},
        "count": {"texts": ["hi", "ho", ["a", "pair"]], "prompt": "+", "limit": 4},
    }
    got = {
        name: made.submit(name, "x", **given).result(TIMEOUT_S) for name, given in answers.items()
    }
    assert got == {
        "conversation": [h, i],
        "last_tokens": [i],
        "text": "hi",
        "pieces": ["h", "i"],
        "echo": ["hi", [h, i], "h", None, 0],
        "count": 10,
    }


def test_errors_come_with_their_words(started: Callable[..., TextWorkers]) -> None:
    made = started("{{ raise_exception('no users') }}")
    with pytest.raises(InvalidInput, match=r"messages: got what the chat template refuses \(no us"):
        chat(made).result(TIMEOUT_S)
    with pytest.raises(InvalidInput, match=r"^tokens: got id 999") as caught:
        made.submit("text", "tokens", tokens=[999]).result(TIMEOUT_S)
    assert caught.value.field == "tokens"
    with pytest.raises(CheckpointError, match="got a template that is not safe"):
        chat(started("{{ ''.__class__.__mro__ }}")).result(TIMEOUT_S)
    with pytest.raises(InvalidInput, match="messages: got a conversation for a model whose folder"):
        chat(started(None)).result(TIMEOUT_S)


BOMBS = {
    "strip": STRIP,
    "sum": SUM,
    "text doubled": DOUBLED,
    "text multiplied": MULTIPLIED,
    "a loop's text": "{% for i in range(99999) %}" + "x" * 50_000 + "{% endfor %}",
    "lists in lists": grown("[1]", "[n.x, n.x]", "{{ n.x | string }}"),
    "a number squared": grown("9", "n.x * n.x"),
    "replacements": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
}
MORE_BOMBS = {
    "loops in loops": "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "a macro of itself": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a loop of itself": "{% for x in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "lists added": grown("[1]", "n.x + n.x"),
    "namespaces in themselves": grown("1", "namespace(a=n.x, b=n.x)", "{{ n.x }}"),
    "dictionaries made": grown("1", "dict(a=n.x, b=n.x)", "{{ n.x | tojson }}"),
    "a power": "{{ 10 ** 10000000000 }}",
    "a width": "{{ 'x'.center(10000000000) }}",
    "a percent format": "{{ '%10000000000d' % 1 }}",
    "a format in a format": "{{ '{:{}}'.format(1, 10000000000) }}",
    "a filter's replacements": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "a separator of a filter": "{{ range(99999) | join('y' * 100000) }}",
    "an indent of text": "{{ ([1] * 100000) | tojson(indent='y' * 100000) }}",
    "a translation": "{{ ('x' * 100000).translate({120: 'y' * 100000}) }}",
    "attributes of links": "{{ ('http://a.co ' * 100000) | urlize(rel='y' * 100000) }}",
    "a percent format's fields": "{{ ('%(a)s' * 100000) % {'a': 'y' * 100000} }}",
    "a mapping's fields": "{{ ('{a}' * 100000).format_map({'a': 'y' * 100000}) }}",
    "a number as bytes": "{{ (1).to_bytes(10000000000, 'big') }}",
    "a list sorted": "{{ range(99999) | map('string') | sort | batch(1) | list | string }}" * 99,
}


@pytest.mark.parametrize(
    "bomb", [*BOMBS, *(pytest.param(name, marks=pytest.mark.sweep) for name in MORE_BOMBS)]
)
def test_a_template_without_end_is_ended(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch, bomb: str
) -> None:
    give_harm_a_second(monkeypatch)
    made = started(HARM.format((BOMBS | MORE_BOMBS)[bomb]))
    wanted = chat(made).result(TIMEOUT_S)
    began = time.monotonic()
    with pytest.raises(InvalidInput, match=r"^messages: got .+, wanted .+; (shorten|change|split)"):
        chat(made, "harm").result(TIMEOUT_S)
    assert time.monotonic() - began < ENDED_S
    assert chat(made).result(TIMEOUT_S) == wanted


def test_a_tokenizer_without_end_is_ended(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_harm_a_second(monkeypatch, "xxx")
    made = started()
    backtracking(Path(made._short._configuration["folder"]))
    with pytest.raises(
        InvalidInput, match=r"^prompt: got what .* cannot read \(it takes over 1 s\), wanted"
    ):
        made.submit("ids", "prompt", text=SLOW_WORDS, special_tokens=True).result(TIMEOUT_S)


def test_memory_is_bounded(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "DEADLINE_S", TIMEOUT_S)
    stop = "(p.os.kill(p.os.getpid(), signal.SIGSTOP), p.os._exit(p.OUT_OF_MEMORY))"
    imports = "import signal; from fusewire.worker_processes import program as p"
    _in_the_worker(monkeypatch, f"{imports}; p._out_of_memory = lambda: {stop}")
    made = started(HARM.format("{% set x = ['a' * 400000000] %}{{ x[0] | upper | lower }}"))
    chat(made).result(TIMEOUT_S)
    its_pid, late = pid(made), chat(made, "harm")
    _until(lambda: _status(its_pid, "State").startswith("T"))
    peak = int(_status(its_pid, "VmHWM").split()[0]) << 10
    assert 300 * MIB < peak < worker.CALL_BYTES + 200 * MIB
    os.kill(its_pid, signal.SIGCONT)
    with pytest.raises(InvalidInput, match="it takes too much memory"):
        late.result(TIMEOUT_S)
    assert _resident(its_pid) == 0


def test_a_tokenizer_has_no_more_memory_than_a_template(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_the_worker(monkeypatch, "w.CALL_BYTES = 64 << 20; w.CALL_BYTES_PER_CHARACTER = 1")
    made = started()
    assert made.submit("ids", "prompt", text="x " * 500, special_tokens=True).result(TIMEOUT_S)
    with pytest.raises(InvalidInput, match=r"^prompt: got .* \(it takes too much memory\)"):
        made.submit("ids", "prompt", text="x " * 500_000, special_tokens=True).result(TIMEOUT_S)


def test_a_worker_that_is_killed_is_replaced(started: Callable[..., TextWorkers]) -> None:
    made = started()
    wanted = chat(made).result(TIMEOUT_S)
    killed = pid(made)
    os.kill(killed, signal.SIGKILL)
    assert chat(made).result(TIMEOUT_S) == wanted
    assert pid(made) != killed


def test_a_call_that_loses_its_worker_is_made_again(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = process.WorkerProcess.load
    monkeypatch.setattr(
        process.WorkerProcess, "load", lambda its: (load(its), loaded.append(its.pid))[0]
    )
    made = started(HARM.format(SUM))
    chat(made).result(TIMEOUT_S)
    killed, late = pid(made), chat(made, "harm")
    os.kill(killed, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    _until(lambda: pid(made) != killed and pid(made) in loaded)
    assert not late.done()
    os.kill(pid(made), signal.SIGKILL)
    with pytest.raises(Unavailable, match=r"^text worker: got SIGKILL, twice, wanted an answer"):
        late.result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", "exit status 0"),
        ("import os; os.write(0, b'\\0\\0\\0\\5hello'); import time; time.sleep(99)", "SIGKILL"),
        ("import os; os.write(0, b'\\xff' * 99); import time; time.sleep(99)", "SIGKILL"),
        ("import os; os.write(0, b'\\0\\0\\1\\0{'); os.abort()", "it takes too much memory"),
        ("import os; os.write(0, b'\\0\\0\\0\\2[]'); import time; time.sleep(99)", "SIGKILL"),
        ("import nothing_of_this_name", "exit status 1"),
        (
            "import os, time; os.close(0); time.sleep(0.5); os._exit(3)",
            "it takes too much memory",
        ),
    ],
    ids=[
        "nothing",
        "text",
        "a huge message",
        "half a message",
        "a list",
        "no program",
        "a slow end",
    ],
)
def test_a_worker_that_answers_garbage_is_ended(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(process, "_PROGRAM", program)
    with pytest.raises(CheckpointError, match=rf"^0: got a tokenizer .* cannot load \({words}\)"):
        started().description()


def test_a_folder_that_is_never_loaded_is_refused_in_time(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PROGRAM", "import time; time.sleep(99)")
    monkeypatch.setattr(process, "START_S", 0.2)
    with pytest.raises(CheckpointError, match=r"^0: got .* cannot load \(it takes over 0\.2 s\)"):
        started().description()


def test_loading_takes_a_bounded_amount_of_memory(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _in_the_worker(monkeypatch, "w.LOAD_BYTES = 1 << 20")
    made = started()
    long = '{"x": [' + ",".join(["[]"] * 3_000_000) + "]}"
    (tmp_path / "0" / "tokenizer_config.json").write_text(long)
    with pytest.raises(CheckpointError, match=r"^0: got .* \(it takes too much memory\)"):
        made.description()


def test_a_long_text_keeps_short_ones_waiting_for_nothing(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = started(HARM.format(STRIP).replace("== 'harm'", "[0] == 'h'"))
    chat(made, "well").result(TIMEOUT_S)
    chat(made, "w" * LONG_BYTES).result(TIMEOUT_S)
    monkeypatch.setattr(workers, "DEADLINE_S", 2 * TIMEOUT_S)
    late = chat(made, "h" * LONG_BYTES)
    _until(late.running)
    for _ in range(10):
        chat(made, "well").result(TIMEOUT_S)
    assert not late.done()


def test_too_many_calls_are_refused(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_WAITING", 2)
    made = started(HARM.format(STRIP))
    chat(made).result(TIMEOUT_S)
    late = chat(made, "harm")
    _until(late.running)
    waiting = [chat(made), chat(made)]
    with pytest.raises(Unavailable, match=r"^queue: got 2 requests waiting for the model's token"):
        chat(made)
    assert waiting[0].cancel()
    os.kill(pid(made), signal.SIGKILL)
    made.close()
    for future in (late, waiting[1]):
        with pytest.raises(Unavailable, match="while it stops"):
            future.result(TIMEOUT_S)
    with pytest.raises(Unavailable, match="while it stops"):
        chat(made)


def test_a_call_that_waited_too_long_is_refused(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_WAIT_S", -1.0)
    with pytest.raises(Unavailable, match=r"^queue: got a request that waited 0 s"):
        chat(started()).result(TIMEOUT_S)


def test_a_worker_ends_with_its_owner(tmp_path: Path) -> None:
    """This includes a busy worker whose owner was killed."""
    folder = text_folder(tmp_path / "folder", STRIP)
    program = (
        "from pathlib import Path\n"
        "from fusewire.text_workers.workers import TextWorkers\n"
        f"workers = TextWorkers(Path({str(folder)!r}), max_length=512)\n"
        "workers.description()\n"
        "late = workers.submit('conversation', 'm', messages=[{'role': 'user', 'content': 'x'}])\n"
        "print(workers._short._process.pid, flush=True)\n"
        "late.result()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    worker = int(owner.stdout.readline())
    time.sleep(0.2)
    assert _resident(worker) > 0
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _until(lambda: _resident(worker) == 0)


def test_a_worker_knows_no_secret_of_its_owner(
    started: Callable[..., TextWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = started()
    made.description()
    assert b"secret" not in Path(f"/proc/{pid(made)}/environ").read_bytes()
    limits = Path(f"/proc/{pid(made)}/limits").read_text()
    for name, most in (("file size", "0"), ("core file size", "0"), ("open files", "32")):
        assert f"Max {name:21} {most} " in limits


def test_workers_that_were_never_needed_were_never_started(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    made = TextWorkers(tmp_path, max_length=1)
    assert made._short._process is None
    made.close()
    assert set(threading.enumerate()) <= before


def _in_the_worker(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Executes the statement in each worker before it begins, with its module as `w`."""
    begun = f"w = program; {statement}\nprogram.main("
    monkeypatch.setattr(process, "_PROGRAM", process._PROGRAM.replace("program.main(", begun))


def _resident(pid: int) -> int:
    """Returns the resident bytes; 0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def _status(pid: int, field: str) -> str:
    """Returns a field of /proc/PID/status."""
    return Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split("\n")[0].strip()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
