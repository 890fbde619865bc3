"""docs/operations.md names the existing metrics, and its gateway files are valid."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.deploy.test_deploy import GPU_METRICS, TRITON_METRICS, fusewire_metrics

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def test_every_metric_of_ours_is_explained_and_every_one_explained_exists() -> None:
    ours = {re.sub("_(bucket|sum|count)$", "", name) for name in fusewire_metrics()}
    named = set(re.findall(r"`((?:fusewire|nv)_[a-z_]+)[`{]", TEXT))
    assert ours == {name for name in named if name.startswith("fusewire_")}
    assert {name for name in named if name.startswith("nv_")} <= TRITON_METRICS | GPU_METRICS


def test_envoys_listener_finds_its_clusters() -> None:
    (example,) = re.findall(r"```yaml\n(static_resources.*?)```", TEXT, re.DOTALL)
    resources = yaml.safe_load(example)["static_resources"]
    (listener,) = resources["listeners"]
    (manager,) = listener["filter_chains"][0]["filters"]
    (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
    wanted = {route["route"]["cluster"] for route in host["routes"]}
    assert wanted == {cluster["name"] for cluster in resources["clusters"]} == {"http", "grpc"}
