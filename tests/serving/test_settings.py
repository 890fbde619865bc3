"""One typed description of every setting: what is not in it, is refused."""

from __future__ import annotations

import typing

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
    validated,
)
from fusewire.serving.flags import GROUPS
from fusewire.serving.model_config import settings_of
from fusewire.settings import EngineSettings


def parameters(**values: str) -> dict[str, dict[str, str]]:
    return {key: {"string_value": value} for key, value in values.items()}


def test_parameters_come_back_as_they_were_set() -> None:
    settings = ModelSettings(task="embed", truncate=True, max_length=77, pooling="cls", threads=2)
    written = settings.parameters()
    assert written == {
        "task": "embed",
        "truncate": "true",
        "max_length": "77",
        "pooling": "cls",
        "threads": "2",
    }
    assert settings_of(parameters(**written)) == settings


def test_the_engine_gets_its_share() -> None:
    settings = settings_of(parameters(task="fill", top_k="3", dtype="float16", graphs="false"))
    assert settings.engine() == EngineSettings(top_k=3, dtype="float16", graphs=False)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"task": "embed", "bogus": "1"}, ["bogus", "unknown setting", "truncate"]),
        ({"task": "banana"}, ["task", "'banana'", "embed"]),
        ({"truncate": "true"}, ["task", "not set"]),
        ({"task": "embed", "truncate": "perhaps"}, ["truncate", "'perhaps'", "boolean"]),
        ({"task": "embed", "max_length": "long"}, ["max_length", "'long'", "integer"]),
        ({"task": "embed", "max_length": "0"}, ["max_length", "'0'", "greater than or equal to 1"]),
        ({"task": "embed", "threads": "257"}, ["threads", "'257'", "less than or equal to 256"]),
        ({"task": "embed", "pooling": "median"}, ["pooling", "'median'", "'mean'"]),
        ({"task": "embed", "dtype": "int4"}, ["dtype", "'int4'", "'float32'"]),
    ],
)
def test_a_bad_parameter_is_named_with_its_value_and_limit(
    bad: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(parameters(**bad))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("settings", [ModelSettings, GeneratorSettings, Deployment, ServerSettings])
def test_every_setting_is_described_and_has_a_group(settings: typing.Any) -> None:
    for name, field in settings.model_fields.items():
        assert field.description, name
        assert (field.json_schema_extra or {}).get("group") in GROUPS, name


@pytest.mark.parametrize("settings", [ModelSettings, GeneratorSettings, Deployment, ServerSettings])
def test_true_is_no_number_and_a_number_may_be_text(settings: typing.Any) -> None:
    task = {"task": "generate"} if "task" in settings.model_fields else {}
    numbers = []
    for name, field in settings.model_fields.items():
        if {int, float} & {field.annotation, *typing.get_args(field.annotation)}:
            numbers.append(name)
            for flag in (True, False):
                words = f"^{name}: got {str(flag).lower()}, wanted (integer|number);"
                with pytest.raises(ConfigurationError, match=words):
                    validated(settings, {**task, name: flag})
            least = max([7, *(limit.ge for limit in field.metadata if hasattr(limit, "ge"))])
            assert getattr(validated(settings, {**task, name: str(least)}), name) == least
    assert len(numbers) >= 4


KEYS = ["secret", "s" * 257, "a secret with spaces", "16-plain-letters\n"]


@pytest.mark.parametrize("key", KEYS)
def test_a_control_key_is_hard_to_guess_and_shown_to_nobody(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        validated(ServerSettings, {"control_key": key})
    assert str(caught.value).startswith(f"control_key: got {len(key)} characters, wanted 16 to 256")
    assert key not in str(caught.value)


def test_a_control_key_that_is_no_text_is_not_shown_either() -> None:
    with pytest.raises(ConfigurationError, match="wanted 16 to 256") as caught:
        validated(ServerSettings, {"control_key": 10**15})
    assert str(10**15) not in str(caught.value)


@pytest.mark.parametrize("key", ["k" * 16, "Az09_-" * 40, None])
def test_a_control_key_of_the_lengths_it_says_is_taken(key: str | None) -> None:
    assert validated(ServerSettings, {"control_key": key}).control_key == key


def test_tenants_of_metrics_are_few_and_plain() -> None:
    settings = ModelSettings(task="embed", metric_tenants=" blue,green.2,, blue ")
    assert settings.metric_tenants_named == {"blue", "green.2"}
    assert settings_of(parameters(**settings.parameters())) == settings
    assert ModelSettings(task="embed").metric_tenants_named == frozenset()
    many = ",".join(map(str, range(17)))
    for wrong, words in {"a b": "'a b'", "other": "'other'", many: "17 names"}.items():
        with pytest.raises(ConfigurationError, match=f"metric_tenants.*{words}"):
            ModelSettings(task="embed", metric_tenants=wrong)
