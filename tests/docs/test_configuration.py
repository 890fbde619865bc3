"""docs/configuration.md lists every setting, as in the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from fusewire.serving.config import SERVE, SERVE_WITHOUT, Deployment
from fusewire.serving.environment import variable
from fusewire.serving.flags import by_name
from fusewire.serving.supervisor.config_file import ConfigFile
from fusewire.serving.tritonserver_flags import check

from tests.docs.configuration_page import PAGE, TRITON_KEYS, page


def test_the_committed_tables_are_those_of_the_settings() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python -m tests.docs.configuration_page"
    for name in by_name(*SERVE, leave_out=SERVE_WITHOUT):
        assert f"`{variable(name)}`<br>`{name}` |" in text


def test_every_setting_of_a_deployment_has_its_place_in_config_pbtxt() -> None:
    assert Deployment.model_fields.keys() == TRITON_KEYS.keys()


def test_the_examples_are_accepted(tmp_path: Path) -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "fusewire.yaml"
    path.write_text(example)
    file = ConfigFile(path)
    assert [source.name for source in file.sources] == ["encoder", "writer", "ranker", None]
    assert file.server == {
        key: value for key, value in yaml.safe_load(example).items() if key != "models"
    }
    (passed_on,) = re.findall(r" -- (--trace.*?)\n```", text, re.DOTALL)
    check(passed_on.replace("\\\n", "").split())
