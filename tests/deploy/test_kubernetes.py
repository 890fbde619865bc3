"""deploy/kubernetes, without a cluster: what it renders to is valid, and what it says is true."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from fusewire.serving.environment import check
from fusewire.serving.repository import import_folder

from tests.deploy.custom_resources import OF_A_POD, SPECS
from tests.deploy.test_deploy import NAMES, TRITON_METRICS, fusewire_metrics
from tests.load.run import default_folder

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
ONE_OR_THE_OTHER = [{"volume", "image"}, {"autoscale-encoders", "autoscale-generation"}]
NEWEST = kubernetes_validate.latest_version()

Resource = dict[str, Any]


@cache
def rendered(base: str, *components: str) -> list[Resource]:
    """What `kubectl apply -k` would send: a folder of deploy/kubernetes with components."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../kubernetes/{base}"],
        "components": [f"../kubernetes/components/{name}" for name in components],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(KUBERNETES, folder / "kubernetes")
        (folder / "overlay").mkdir()
        (folder / "overlay/kustomization.yaml").write_text(json.dumps(overlay))
        command = ["kubectl", "kustomize", str(folder / "overlay")]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def renderings() -> list[tuple[str, ...]]:
    """Each base alone, each component alone, and all that go together."""
    together = [
        [name for name in COMPONENTS if name not in {"volume", "autoscale-encoders"}],
        [name for name in COMPONENTS if name not in {"image", "autoscale-generation"}],
    ]
    singles = [[]] + [[name] for name in COMPONENTS]
    return [(base, *names) for base in ("base", "gpu") for names in singles + together] + [
        ("kserve",)
    ]


def only(resources: list[Resource], kind: str) -> Resource:
    (found,) = (each for each in resources if each["kind"] == kind)
    return found


def pod_of(resources: list[Resource]) -> Resource:
    spec: Resource = only(resources, "Deployment")["spec"]["template"]["spec"]
    return spec


def server_of(resources: list[Resource]) -> Resource:
    (container,) = pod_of(resources)["containers"]
    return dict(container)


def runtime() -> Resource:
    spec: Resource = yaml.safe_load((KUBERNETES / "kserve/serving_runtime.yaml").read_text())
    return spec


def as_pod(spec: Resource) -> Resource:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def validate(resource: Resource) -> None:
    schema = SPECS.get((resource["apiVersion"], resource["kind"]))
    if schema is None:
        kubernetes_validate.validate(resource, NEWEST, strict=True)
        return
    assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
    spec = resource["spec"]
    jsonschema.validate(spec, schema)
    if resource["kind"] == "ServingRuntime":
        parts = {name: spec[name] for name in ("containers", "volumes")}
        kubernetes_validate.validate(as_pod(parts), NEWEST, strict=True)
    if resource["kind"] == "InferenceService":
        parts = {name: spec["predictor"][name] for name in OF_A_POD}
        container = {"name": "kserve-container", "image": "fusewire"}
        kubernetes_validate.validate(as_pod(parts | {"containers": [container]}), NEWEST, True)
    if resource["kind"] == "ScaledObject":
        hpa = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "hpa"},
            "spec": spec["advanced"]["horizontalPodAutoscalerConfig"]
            | {"maxReplicas": spec["maxReplicaCount"], "minReplicas": spec["minReplicaCount"]}
            | {"scaleTargetRef": {"kind": "Deployment"} | spec["scaleTargetRef"]},
        }
        kubernetes_validate.validate(hpa, NEWEST, strict=True)


@pytest.mark.parametrize("names", renderings(), ids="-".join)
def test_every_combination_is_valid(names: tuple[str, ...]) -> None:
    resources = rendered(*names)
    for resource in resources:
        validate(resource)
    identities = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", "spec.template.spec.enableServiceLink", False),
        ("Deployment", "spec.strategy.rollingUpdate.maxUnavailable", []),
        ("ScaledObject", "spec.threshold", "1"),
        ("ScaledObject", "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleUpp", {}),
        ("InferencePool", "spec.targetPorts", [{"number": "9000"}]),
    ],
)
def test_a_field_that_is_wrong_is_found(kind: str, path: str, value: Any) -> None:
    resources = rendered("base", "autoscale-generation", "inference-pool")
    resource = json.loads(json.dumps(only(resources, kind)))
    validate(resource)
    *way, last = path.split(".")
    inner = resource
    for part in way:
        inner = inner[part]
    inner[last] = value
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        validate(resource)


def selected(resource: Resource) -> Resource:
    selector = resource["spec"].get("selector") or resource["spec"]["podSelector"]
    labels: Resource = selector.get("matchLabels", selector)
    return labels


def test_every_selector_finds_the_pods() -> None:
    resources = rendered("base", "monitoring", "inference-pool")
    labels = only(resources, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selecting = [
        each for each in resources if "selector" in each["spec"] or "podSelector" in each["spec"]
    ]
    assert len(selecting) == 7
    for resource in selecting:
        assert selected(resource).items() <= labels.items(), resource["kind"]


def test_every_port_that_is_named_is_one_of_the_container() -> None:
    resources = rendered("base", "openai", "monitoring", "inference-pool")
    container = server_of(resources)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in (each for each in resources if each["kind"] == "Service"):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    rules = only(resources, "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == ports.keys()
    (endpoint,) = only(resources, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    (target,) = only(resources, "InferencePool")["spec"]["targetPorts"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert str(target["number"]) == environment["FUSEWIRE_OPENAI_PORT"] == str(ports["openai"])


def test_metrics_are_for_prometheus_alone_and_nothing_goes_out() -> None:
    policy = only(rendered("base"), "NetworkPolicy")["spec"]
    assert policy["egress"] == []
    opened = {
        port["port"]: "namespaceSelector" in source
        for rule in policy["ingress"]
        for source in rule["from"]
        for port in rule["ports"]
    }
    assert opened == {"http": False, "grpc": False, "metrics": True}


@pytest.mark.parametrize("names", [("base", "image"), ("gpu", "image"), ("kserve",)], ids="-".join)
def test_no_container_has_privileges(names: tuple[str, ...]) -> None:
    resources = rendered(*names)
    if names == ("kserve",):
        pod = runtime()["spec"]
        pod = pod | {
            "initContainers": [],
            "securityContext": pod["containers"][0]["securityContext"],
        }
        own = only(resources, "InferenceService")["spec"]["predictor"]
    else:
        own = pod = pod_of(resources)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 1000  # of the Dockerfile
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["automountServiceAccountToken"] is False
    for container in pod["containers"] + pod["initContainers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True, container["name"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    for volume in pod["volumes"]:
        assert volume.get("emptyDir", {}).get("sizeLimit"), volume["name"]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert {"/tmp", "/dev/shm"} <= mounts.keys()
    if "/models" in mounts:
        assert mounts["/models"]["readOnly"] is True


@pytest.mark.parametrize("names", [("base",), ("kserve",)], ids="-".join)
def test_requests_in_flight_have_the_time_that_is_promised(names: tuple[str, ...]) -> None:
    resources = rendered(*names)
    if names == ("kserve",):
        (container,) = runtime()["spec"]["containers"]
        grace = only(resources, "InferenceService")["spec"]["predictor"]
    else:
        container, grace = server_of(resources), pod_of(resources)
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    environment = {each["name"]: each["value"] for each in container["env"]}
    exit_timeout_s = int(environment["FUSEWIRE_EXIT_TIMEOUT_S"])
    assert grace["terminationGracePeriodSeconds"] >= int(seconds) + exit_timeout_s + 15
    assert grace["enableServiceLinks"] is False


@pytest.mark.parametrize("names", renderings(), ids="-".join)
def test_serve_takes_every_variable(names: tuple[str, ...]) -> None:
    for resource in rendered(*names):
        for name in re.findall(r'"name": "(FUSEWIRE_\w+)"', json.dumps(resource)):
            check({name: "1"})


@pytest.mark.parametrize("component", ["autoscale-encoders", "autoscale-generation"])
def test_pods_are_scaled_by_metrics_that_exist(component: str) -> None:
    resources = rendered("base", component)
    assert "replicas" not in only(resources, "Deployment")["spec"]
    triggers = only(resources, "ScaledObject")["spec"]["triggers"]
    for trigger in triggers:
        asked = set(NAMES.findall(trigger["metadata"]["query"]))
        assert asked
        assert asked <= fusewire_metrics() | TRITON_METRICS


def test_the_endpoint_picker_reads_gauges_that_exist() -> None:
    text = (KUBERNETES / "components/inference-pool/kustomization.yaml").read_text()
    asked = set(NAMES.findall(text))
    assert asked == {"fusewire_waiting", "fusewire_kv_pages_used_ratio"}
    assert asked <= fusewire_metrics()


def test_the_documentation_names_every_folder() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    for name in ["base", "gpu", "kserve", *COMPONENTS]:
        assert f"`{name}`" in page, name


@contextmanager
def started(arguments: list[str], environment: Resource) -> Iterator[tuple[Any, dict[str, str]]]:
    """`fusewire serve` with a container's arguments, on free ports of loopback."""
    flags = [word if word != "0.0.0.0" else "127.0.0.1" for word in arguments]
    for name in ("http-port", "grpc-port", "metrics-port"):
        if f"--{name}" in flags:
            flags[flags.index(f"--{name}") + 1] = "0"
        else:
            flags += [f"--{name}", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fusewire", "serve", *flags, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                break
        else:
            pytest.fail(f"serve ended with {process.wait()} before it was ready")
        yield process, event
    finally:
        process.kill()
        process.wait()


def variables(container: Resource, cache: Path) -> dict[str, str]:
    values = {each["name"]: each["value"] for each in container["env"]}
    return values | {"FUSEWIRE_CACHE": str(cache)}


def answers(address: str, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def contents(folder: Path) -> dict[str, int]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


@pytest.mark.server
@pytest.mark.parametrize("kind", ["base", "kserve"])
def test_the_containers_arguments_serve_and_its_probes_tell_the_truth(
    tmp_path: Path, kind: str
) -> None:
    models = tmp_path / "models"
    if kind == "base":
        pytest.importorskip("pytriton")
        deployment = yaml.safe_load((KUBERNETES / "base/deployment.yaml").read_text())
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        import_folder(default_folder(), models, name="mini")
        arguments = [str(models) if word == "/models" else word for word in container["args"]]
    else:
        (container,) = runtime()["spec"]["containers"]
        shutil.copytree(default_folder(), models)
        words = json.dumps(container).replace("{{.Name}}", "mini")
        container = json.loads(words.replace("/mnt/models", str(models)))
        arguments = container["args"]
    for path in models.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = contents(models)
    probes = {
        name: container[name]["httpGet"]["path"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    with started(arguments, variables(container, tmp_path / "cache")) as (process, addresses):
        for name, path in probes.items():
            assert answers(addresses["http"], path), name
        assert answers(addresses["http"], "/v2/models/mini/ready")
        assert contents(models) == before
        process.send_signal(signal.SIGTERM)
        assert process.wait(float(variables(container, tmp_path)["FUSEWIRE_EXIT_TIMEOUT_S"])) == 0
        assert not answers(addresses["http"], probes["livenessProbe"])
    with started(arguments, variables(container, tmp_path / "cache")) as (process, addresses):
        assert answers(addresses["http"], probes["readinessProbe"])
        process.kill()
        process.wait()
        # The kernel ends tritonserver with its parent.
        until = time.monotonic() + 60
        while answers(addresses["http"], probes["livenessProbe"]):
            assert time.monotonic() < until
        assert not answers(addresses["http"], probes["readinessProbe"])
