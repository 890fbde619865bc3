"""Schemas of the custom resources in deploy/kubernetes: the fields that are used there, no others,
as the definitions of these versions have them: KEDA 2.17, Prometheus operator 0.85, KServe 0.16,
Gateway API inference extension 1.0."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}
PARTS_OF_A_POD: Schema = {}  # held against the schema of Pod, not here


def closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def several(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


SCALED_OBJECT = closed(
    {
        "scaleTargetRef": closed({"name": TEXT}),
        "triggers": several(
            closed(
                {
                    "type": one_of("prometheus"),
                    "metricType": one_of("AverageValue", "Value"),
                    "metadata": closed({"serverAddress": TEXT, "query": TEXT, "threshold": TEXT}),
                }
            )
        ),
    },
    {
        "minReplicaCount": COUNT,
        "maxReplicaCount": COUNT,
        "pollingInterval": COUNT,
        # Of autoscaling/v2, and held against its schema.
        "advanced": closed({"horizontalPodAutoscalerConfig": closed({"behavior": {}})}),
    },
)

POD_MONITOR = closed(
    {
        "selector": closed({"matchLabels": LABELS}),
        "podMetricsEndpoints": several(closed({"port": TEXT, "interval": TEXT})),
    },
    {"jobLabel": TEXT},
)

INFERENCE_POOL = closed(
    {
        "selector": closed({"matchLabels": LABELS}),
        "targetPorts": several(closed({"number": PORT})),
        "endpointPickerRef": closed({"name": TEXT, "port": closed({"number": PORT})}),
    }
)

SERVING_RUNTIME = closed(
    {
        "supportedModelFormats": several(
            closed({"name": TEXT, "version": TEXT, "autoSelect": {"type": "boolean"}})
        ),
        "protocolVersions": several(one_of("v1", "v2", "grpc-v1", "grpc-v2")),
        "containers": PARTS_OF_A_POD,
    },
    {"annotations": LABELS, "volumes": PARTS_OF_A_POD},
)

PREDICTOR = {
    "minReplicas": COUNT,
    "maxReplicas": COUNT,
    "model": closed(
        {
            "runtime": TEXT,
            "modelFormat": closed({"name": TEXT}),
            "protocolVersion": one_of("v1", "v2", "grpc-v2"),
            "storageUri": TEXT,
        }
    ),
}
OF_A_POD = ("terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks")

INFERENCE_SERVICE = closed(
    {"predictor": closed(PREDICTOR, dict.fromkeys(OF_A_POD, PARTS_OF_A_POD))}
)

SPECS: dict[tuple[str, str], Schema] = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("inference.networking.k8s.io/v1", "InferencePool"): INFERENCE_POOL,
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): SERVING_RUNTIME,
    ("serving.kserve.io/v1beta1", "InferenceService"): INFERENCE_SERVICE,
}
