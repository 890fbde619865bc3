"""The YAML file of `fusewire serve --config`: settings of the server, and a list of models.

    http_port: 8000
    models:
      - name: encoder
        source: /models/bert-base-uncased     # or an id on Hugging Face, and its revision
        device: cuda
        max_batch_tokens: 32768
      - source: /models/repository

Aliases are refused, as a few lines of them can stand for any amount of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fusewire.errors import ConfigurationError
from fusewire.serving.config import (
    SERVE_WITHOUT,
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
    validated,
)
from fusewire.serving.repository import is_checkpoint
from fusewire.serving.setting import secrets
from fusewire.serving.supervisor.sources import Source
from fusewire.settings import WrongSetting, closest
from fusewire.tasks.contract import GENERATE, GENERATING

_SIZE_LIMIT_BYTES = 1 << 20
_MOST_NESTING = 16
_MODELS = "models"
_OWN = ("name", "source", "revision")  # keys of a model that are not settings

Place = tuple[str | int, ...]  # keys and indices that lead to a value


class ConfigFile:
    """The settings of a file. Raises ConfigurationError with file, line and key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[Place, int] = {}
        values = self._read()
        listed = _MODELS in values
        models = values.pop(_MODELS, None)
        known = set(ServerSettings.model_fields)
        for key in values:
            if key not in known:
                of_model = key in _model_keys()
                hint = "it is a setting of a model: move it under models; " if of_model else None
                raise self._unknown((key,), [*known, _MODELS], hint)
        self.server: dict[str, Any] = values
        self._checked((), ServerSettings, values)
        if listed and not (isinstance(models, list) and models):
            got = "none" if not models else repr(str(models)[:80])
            raise self._wrong((_MODELS,), f"got {got}, wanted a list; add - source: FOLDER")
        self.sources = [self._source(index, entry) for index, entry in enumerate(models or [])]

    def _source(self, index: int, entry: object) -> Source:
        at: Place = (_MODELS, index)
        if not isinstance(entry, dict):
            raise self._wrong(at, f"got {str(entry)[:80]!r}, wanted keys and values")
        known = [*_OWN, *_model_keys()]
        for key in entry:
            if key not in known:
                raise self._unknown((*at, key), known)
        for key in _OWN:
            if not isinstance(entry.get(key, ""), str):
                raise self._wrong((*at, key), f"got {entry[key]!r}, wanted text; put it in quotes")
        if not entry.get("source"):
            raise self._wrong(at, "got no source, wanted a folder or id; add source: FOLDER")
        settings = {key: value for key, value in entry.items() if key not in _OWN}
        folder = Path(entry["source"])
        if folder.is_dir() and not is_checkpoint(folder) and (settings or "name" in entry):
            raise self._wrong(
                at,
                f"got settings for the repository {folder}, wanted those of a model folder; set "
                "them in each model's config.pbtxt",
            )
        deployment = {key: settings.pop(key) for key in Deployment.model_fields if key in settings}
        self._checked(at, Deployment, deployment)
        others = settings.keys() - ModelSettings.model_fields.keys()
        generates = settings.get("task", GENERATE if others else "") in GENERATING
        kind = GeneratorSettings if generates else ModelSettings
        self._checked(at, kind, {"task": GENERATE, **settings})
        own = {key: entry[key] for key in _OWN if key in entry}
        return Source(**own, settings=settings, deployment=validated(Deployment, deployment))

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                text = file.read(_SIZE_LIMIT_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(
                f"config: got {self._path}, wanted a YAML file ({error.strerror}); correct the path"
            ) from None
        if len(text) > _SIZE_LIMIT_BYTES:
            raise ConfigurationError(
                f"{self._path}: got more than {_SIZE_LIMIT_BYTES} bytes, wanted fewer; is it the "
                "right file?"
            )
        try:
            depth = 0
            for event in yaml.parse(text, yaml.SafeLoader):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                if depth > _MOST_NESTING:  # the scanner's time grows quadratically with it
                    line = event.start_mark.line + 1
                    raise ConfigurationError(
                        f"{self._path}, line {line}: got over {_MOST_NESTING} levels of nesting, "
                        "wanted fewer; is it the right file?"
                    )
                if isinstance(event, yaml.AliasEvent):
                    line = event.start_mark.line + 1
                    raise ConfigurationError(
                        f"{self._path}, line {line}: got the alias *{event.anchor}, wanted none; "
                        "write the value again"
                    )
            values = yaml.safe_load(text)
            for place, line in _lines(yaml.compose(text, yaml.SafeLoader)):
                again = place in self._lines
                self._lines[place] = line
                if again:
                    raise self._wrong(place, "set twice; remove one")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = f", line {mark.line + 1}" if mark else ""
            raise ConfigurationError(
                f"{self._path}{line}: not valid YAML ({error.problem}); correct it"
            ) from None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            words = " ".join(str(error).split())[:200]
            raise ConfigurationError(
                f"{self._path}: not valid YAML ({words}); correct it"
            ) from None
        if values is None:
            return {}
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{self._path}: got {str(values)[:80]!r}, wanted keys and values; as in "
                "`fusewire serve --print-config`"
            )
        return values

    def _checked(self, at: Place, kind: type[Any], values: dict[str, Any]) -> None:
        try:
            validated(kind, values)
        except WrongSetting as error:
            raise self._wrong((*at, error.field), str(error).partition(": ")[2]) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._path}: {error}") from None

    def _unknown(
        self, place: Place, known: Sequence[str], hint: str | None = None
    ) -> ConfigurationError:
        key = str(place[-1])
        hint = closest(key, known) if hint is None else hint
        return self._wrong(
            place,
            f"got an unknown setting, wanted one of {', '.join(sorted(known))}; "
            f"{hint}correct or remove it",
        )

    def _wrong(self, place: Place, words: str) -> ConfigurationError:
        line = self._lines.get(place) or self._lines.get(place[:-1])
        where = f"{self._path}, line {line}" if line else f"{self._path}"
        names = [key for key in place if isinstance(key, str)] or [str(key) for key in place]
        key = names[-1]
        return ConfigurationError(f"{where}: {key}: {words}")


def printed(server: ServerSettings, sources: Sequence[Source]) -> str:
    """Returns the file of a configuration, without secrets."""
    hidden = [name for name in secrets(ServerSettings) if getattr(server, name) is not None]
    values = server.model_dump(mode="json", exclude=set(secrets(ServerSettings)))
    values[_MODELS] = [source.entry() for source in sources]
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return "".join(f"# {name} is set, and not shown.\n" for name in hidden) + text


def _model_keys() -> list[str]:
    names = dict.fromkeys(
        name
        for kind in (Deployment, ModelSettings, GeneratorSettings)
        for name in kind.model_fields
        if name not in SERVE_WITHOUT
    )
    return list(names)


def _lines(node: Any, at: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yields the line of each value. A duplicate key is yielded twice."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value if isinstance(key.value, str) else str(key.value))
            yield place, key.start_mark.line + 1
            yield from _lines(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*at, index), value.start_mark.line + 1
            yield from _lines(value, (*at, index))
