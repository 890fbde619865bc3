"""The configuration and versions with which each model was served. Healing loads these again.

The repository may have changed since: a newer version folder that does not load, an edited or
deleted config.pbtxt. A crash must not load such a change.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from fusewire.errors import ConfigurationError
from fusewire.serving import model_config, repository
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.supervisor.control import Control

_RELOADS = "reloads"


@dataclass(frozen=True)
class Pin:
    """The configuration with which a model ran, in Triton's JSON, and the versions that were
    served."""

    config: dict[str, Any]
    versions: tuple[int, ...]

    def override(self, versions: Sequence[int]) -> dict[str, Any]:
        """Returns the configuration to load these versions with. It increments the count of
        reloads, because Triton ignores a load that changes nothing."""
        parameters = self.config.get("parameters", {})
        reloads = int(parameters.get(_RELOADS, {}).get("string_value", 0)) + 1
        return {
            **self.config,
            "parameters": {**parameters, _RELOADS: {"string_value": str(reloads)}},
            "version_policy": {"specific": {"versions": list(versions)}},
        }

    def in_repositories(self, repositories: Sequence[Path], model: str) -> bool:
        """Whether Triton would load the same from the model's current repository entry."""
        try:
            entry = repository.entry(repositories, model)
            message = model_config.read(entry / repository.CONFIG)
            there = [int(path.name) for path in entry.iterdir() if path.name.isdigit()]
        except (ConfigurationError, OSError):
            return False
        if model_config.chosen_versions(message, there) != set(self.versions):
            return False
        ran = model_config.of_json(self.config)
        for config in (message, ran):
            config.ClearField("version_policy")
        return _within(json_format.MessageToDict(message), json_format.MessageToDict(ran))


class Pins:
    """The pins of all models that a server serves, whoever loaded them."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._pins: dict[str, Pin] = {}

    def refresh(self, timeout_s: float) -> None:
        """Reads the server's state. Keeps the pin of a model that failed, and drops that of a model
        that an operator unloaded. Raises EndpointError when there is no answer."""
        rows = sorted(self._control.index(timeout_s), key=lambda row: str(row["name"]))
        for name, group in itertools.groupby(rows, key=lambda row: str(row["name"])):
            states = {int(row["version"]): row for row in group if row.get("state")}
            ready = [version for version, row in states.items() if row["state"] == "READY"]
            pin = self._pins.get(name)
            if ready:
                self._remember(name, ready, timeout_s)
            elif pin and all(_unloaded(states.get(version, {})) for version in pin.versions):
                del self._pins[name]

    def get(self, model: str) -> Pin | None:
        """Returns the pin of a model, or None for one that is not served."""
        return self._pins.get(model)

    def all(self) -> dict[str, Pin]:
        """Returns model -> pin."""
        return dict(self._pins)

    def _remember(self, name: str, versions: list[int], timeout_s: float) -> None:
        try:
            config = self._control.endpoint.call(f"models/{name}/config", timeout_s=timeout_s)
        except EndpointError as error:
            if error.status == 0:
                raise
            return  # unloaded since the index was read
        self._pins[name] = Pin(config, tuple(sorted(versions)))


def _unloaded(row: dict[str, Any]) -> bool:
    """Whether an operator unloaded the version, rather than that it failed or never loaded."""
    return row.get("state") == "UNLOADING" or row.get("reason") == "unloaded"


def _within(part: Any, whole: Any) -> bool:
    """Whether all values of one configuration are equal in the other. A running one also has
    Triton's defaults."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_within, part, whole))
    return bool(part == whole)
