"""What a server in the foreground prints."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from fusewire.serving.supervisor import foreground


def test_events_of_several_threads_are_lines_of_their_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: [foreground._line(event="watchdog") for _ in range(500)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"event": "watchdog"}] * 2000
