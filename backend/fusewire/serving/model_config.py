"""Writes config.pbtxt from the task's contract and the settings, and reads it back with checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from fusewire import devices
from fusewire.errors import ConfigurationError
from fusewire.serving import instance_group
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    model_settings,
)
from fusewire.serving.probe import ProbeTensor
from fusewire.tasks.contract import GENERATING, TensorContract, contract

BACKEND = "fusewire"
_HEADER = "# Written by `fusewire import`; run it again rather than editing this by hand.\n"


def model_config(
    name: str,
    settings: ModelSettings | GeneratorSettings,
    deployment: Deployment,
    probe: Sequence[ProbeTensor],
    *,
    images: bool = False,
    decoder: bool = False,
) -> Any:
    """Returns the ModelConfig message of a model. `probe` becomes the warm-up request. `images`:
    for a folder of images. `decoder`: for a model without an encoder."""
    generates = settings.task in GENERATING
    inputs, outputs = contract(settings.task, images=images, decoder=decoder)
    config = model_config_pb2.ModelConfig(
        name=name,
        backend=BACKEND,
        max_batch_size=0 if generates else deployment.max_batch_size,
        input=[_input(tensor) for tensor in inputs],
        output=[
            model_config_pb2.ModelOutput(
                name=tensor.name, data_type=_data_type(tensor), dims=tensor.dims
            )
            for tensor in outputs
        ],
    )
    config.version_policy.latest.num_versions = deployment.versions_served
    if generates:  # the engine batches, and each step may give a response
        config.model_transaction_policy.decoupled = True
    else:
        # No queue policy: it disables prefetching and stalls the batcher. The engine controls
        # admission.
        config.dynamic_batching.max_queue_delay_microseconds = deployment.queue_delay_us
    gpus = devices.gpus_of(deployment.device)
    word = instance_group.GPU if gpus else instance_group.CPU
    kind = model_config_pb2.ModelInstanceGroup.Kind.Value(word)
    config.instance_group.add(count=deployment.instances, kind=kind, gpus=gpus)
    for key, value in settings.parameters().items():
        config.parameters[key].string_value = value
    if probe:
        warmup = config.model_warmup.add(name="probe", batch_size=1)
        for tensor in probe:
            data = warmup.inputs[tensor.name]
            data.data_type = model_config_pb2.DataType.Value(tensor.dtype)
            data.dims.extend(tensor.dims)
            data.input_data_file = tensor.name
    return config


def as_json(config: Any) -> dict[str, Any]:
    """Returns the message in Triton's JSON."""
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def of_json(config: Mapping[str, Any]) -> Any:
    """Returns the message of Triton's JSON. Fields that this version of the protocol lacks are
    dropped."""
    message = model_config_pb2.ModelConfig()
    return json_format.ParseDict(dict(config), message, ignore_unknown_fields=True)


def chosen_versions(config: Any, versions: Iterable[int]) -> set[int]:
    """Returns the versions that Triton loads, out of the existing ones."""
    policy = config.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return set(versions)
    if kind == "specific":
        return set(policy.specific.versions) & set(versions)
    return set(sorted(versions)[-max(1, policy.latest.num_versions) :])


def write(config: Any, path: Path) -> None:
    """Writes the message as text. Equal messages give equal bytes."""
    path.write_text(_HEADER + text_format.MessageToString(config), encoding="utf-8")


def read(path: Path) -> Any:
    """Returns the ModelConfig message of a file. Raises ConfigurationError with the invalid
    line."""
    name = f"{path.parent.name}/{path.name}"
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigurationError(f"{name}: {error}; correct it or import the model again") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}: not UTF-8 text; import the model again") from None


def check(config: Any, name: str) -> ModelSettings | GeneratorSettings:
    """Returns the settings of a fusewire model, after checking everything that loading depends
    on."""
    settings = settings_of(
        {key: {"string_value": value.string_value} for key, value in config.parameters.items()}
    )
    contract(settings.task)
    for kind, gpus in _groups(config):
        instance_group.check(name, kind, gpus)
    return settings


def changes(before: Any, after: Any) -> list[str]:
    """Returns the settings that differ between two configurations of a model, as text."""
    was, now = _written(before), _written(after)
    return [
        f"{key} {was.get(key, 'default')[:80]} -> {now.get(key, 'default')[:80]}"
        for key in sorted({*was, *now})
        if was.get(key) != now.get(key)
    ]


def _written(config: Any) -> dict[str, str]:
    """Returns the settings that a configuration has, by name."""
    return {
        "device": places(config),
        "instances": " and ".join(str(group.count) for group in config.instance_group),
        "max_batch_size": str(config.max_batch_size),
        "queue_delay_us": str(config.dynamic_batching.max_queue_delay_microseconds),
        "versions_served": str(config.version_policy.latest.num_versions),
        **{key: value.string_value for key, value in config.parameters.items()},
    }


def places(config: Any) -> str:
    """Returns the devices of a model's instances, as text."""
    words = (instance_group.described(kind, gpus) for kind, gpus in _groups(config))
    return " and ".join(dict.fromkeys(words))


def settings_of(parameters: Any) -> ModelSettings | GeneratorSettings:
    """Returns a model's settings from the `parameters` of its configuration in Triton's JSON."""
    settings = model_settings({key: value["string_value"] for key, value in parameters.items()})
    contract(settings.task)
    return settings


def _groups(config: Any) -> list[tuple[str, list[int]]]:
    """Returns (kind, GPUs) of each instance group."""
    name_of = model_config_pb2.ModelInstanceGroup.Kind.Name
    groups = [(str(name_of(group.kind)), list(group.gpus)) for group in config.instance_group]
    return groups or [(instance_group.AUTO, [])]


def _input(tensor: TensorContract) -> Any:
    return model_config_pb2.ModelInput(
        name=tensor.name,
        data_type=_data_type(tensor),
        dims=tensor.dims,
        optional=tensor.optional,
        allow_ragged_batch=tensor.ragged,
    )


def _data_type(tensor: TensorContract) -> Any:
    return model_config_pb2.DataType.Value(tensor.dtype)
