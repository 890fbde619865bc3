"""Environment variables: a setting's, one of the few others, or an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.config import SERVE, SERVE_WITHOUT
from fusewire.serving.environment import OTHERS, check, variable, without_secrets
from fusewire.serving.flags import by_name
from fusewire.serving.instance.published_block import PREFIX as ADMISSION_BLOCKS

ROOT = Path(__file__).parents[2]
SETTINGS = by_name(*SERVE, leave_out=SERVE_WITHOUT)


def test_known_variables_and_those_of_other_programs_pass() -> None:
    names = [*map(variable, SETTINGS), *OTHERS, "PATH", "_FUSEWIRE_COMPLETE"]
    check(dict.fromkeys(names, "x"))


def test_a_misspelt_variable_is_named_with_the_closest() -> None:
    with pytest.raises(
        ConfigurationError, match=r"FUSEWIRE_HTTP_PRT: .* did you mean FUSEWIRE_HTTP_PORT"
    ):
        check({"FUSEWIRE_HTTP_PRT": "1"})


@pytest.mark.parametrize("name", SERVE_WITHOUT)
def test_a_setting_that_no_variable_sets_is_no_known_variable(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable(name)}: got an unknown"):
        check({variable(name): "1"})


def test_other_programs_get_no_keys() -> None:
    found = {"FUSEWIRE_API_KEY": "k", "FUSEWIRE_CONTROL_KEY": "k", "FUSEWIRE_CACHE": "folder"}
    assert without_secrets(found) == {"FUSEWIRE_CACHE": "folder"}


def test_what_kubernetes_sets_for_a_service_named_fusewire_passes() -> None:
    links = {
        "FUSEWIRE_SERVICE_HOST": "10.0.0.1",
        "FUSEWIRE_SERVICE_PORT": "8000",
        "FUSEWIRE_SERVICE_PORT_GRPC": "8001",
        "FUSEWIRE_PORT": "tcp://10.0.0.1:8000",
        "FUSEWIRE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "FUSEWIRE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "FUSEWIRE_GPU_PORT_8000_TCP_PROTO": "tcp",
    }
    check(links)


def test_every_variable_that_the_sources_read_is_known() -> None:
    read = re.compile(r"""(?:getenv\(|environ\.get\(|environ\[)\s*["'](FUSEWIRE_[A-Z_]+)["']""")
    sources = [*(ROOT / "csrc").rglob("*.c*"), *(ROOT / "backend").rglob("*.py")]
    found = {name for path in sources for name in read.findall(path.read_text())}
    assert "FUSEWIRE_CACHE" in found
    assert found <= {*map(variable, SETTINGS), *OTHERS, ADMISSION_BLOCKS}
