"""A local user without the control key: what another uid sees, what a client can do."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.attacks.attack import HONEST, Skip, Stage, attack
from tests.attacks.requests import OK, post

_NOBODY = 65534
# Runs as that user with Python's standard library alone: reads processes, shared memory and
# temporary folders, and prints what it could see of each. stdin: {"key", "pids", "regions",
# "folders"}.
_LOOK = """\
import json, os, sys

given, found = json.load(sys.stdin), []
for pid in given["pids"]:
    for name in ("cmdline", "environ", "maps"):
        try:
            words = open(f"/proc/{pid}/{name}", "rb").read()
        except OSError:
            continue
        if given["key"].encode() in words:
            found.append(f"the control key in /proc/{pid}/{name}")
        elif name != "cmdline" and words:
            found.append(f"/proc/{pid}/{name}")
for path in given["regions"]:
    if os.access(path, os.R_OK):
        found.append(path)
for folder in given["folders"]:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    found.append(f"{folder}: {names[:3]}")
print(json.dumps(found))
"""


@attack(HONEST)
def other_uid(stage: Stage) -> None:
    """Another user reads no key, no environment, no shared memory and no temporary folder."""
    if os.getuid() != 0:
        raise Skip("needs root, to become another user")
    python = shutil.which(
        "python3", path=os.defpath
    )  # that of a virtual environment may be private
    if python is None:
        raise Skip(f"no python3 in {os.defpath} that another user can run")
    service = stage.target
    # Its parents must let the other user in, or nothing is tried.
    for folder in (service.folder, *service.folder.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    given = {
        "key": service.control_key,
        "pids": [process.pid for process in service.processes()],
        "regions": [str(region) for region in service.regions()],
        "folders": [str(path) for path in service.temporary.iterdir() if path.is_dir()],
    }
    done = subprocess.run(
        [python, "-IS", "-c", _LOOK],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        user=_NOBODY,
        group=_NOBODY,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    if done.returncode:
        raise Skip(f"the other user cannot run {python}: {done.stderr.strip()[-100:]}")
    found = json.loads(done.stdout)
    assert not found, f"another user reads {len(found)}: {'; '.join(sorted(found)[:3])}"


@attack(HONEST)
def without_key(stage: Stage) -> None:
    """Nothing that loads code, maps memory, or moves logs works without the control key."""
    http_at = stage.target.addresses["http"]
    model = base64.b64encode(b"raise SystemExit").decode()
    upload = {"config": '{"backend": "python"}', "file:1/model.py": model}
    calls: dict[str, dict[str, object]] = {
        "repository/models/minilm/load": {},
        "repository/models/evil/load": {"parameters": upload},
        "repository/models/minilm/unload": {},
        "repository/index": {},
        "systemsharedmemory/region/evil/register": {
            "key": "/evil", "offset": 0, "byte_size": 64
        },
        "cudasharedmemory/region/evil/register": {
            "raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 64
        },
        "logging": {"log_file": "/tmp/evil"},
        "trace/setting": {"trace_file": ["/tmp/evil"]},
        "models/minilm/trace/setting": {"trace_level": ["TIMESTAMPS"]},
    }  # fmt: skip
    done = []
    for header in ({}, {"fusewire-control-key": "0" * 32}, {"fusewire-control-key": ""}):
        for path, body in calls.items():
            if post(http_at, f"/v2/{path}", body, headers=header).kind == OK:
                done.append(path)
        for path in ("logging", "trace/setting", "systemsharedmemory/status"):
            if _get(http_at, f"/v2/{path}") == 200:
                done.append(f"GET {path}")
    assert not done, f"done without the control key: {', '.join(sorted(set(done)))}"


def _get(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
