"""What `import fusewire` gives, and what it costs."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import fusewire
import fusewire_client
import pytest
from fusewire import errors


def test_public_names_are_listed_and_there() -> None:
    assert dir(fusewire) == sorted(fusewire.__all__)
    for name in fusewire.__all__:
        assert getattr(fusewire, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Embeder'"):
        _ = fusewire.Embeder


def test_every_error_that_the_python_api_raises_is_public() -> None:
    there = {name for name in dir(fusewire) if isinstance(getattr(fusewire, name), type)}
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    own = {name for name, one in classes.items() if issubclass(one, Exception)}
    assert {"InvalidInput", "CheckpointError", "ConfigurationError"} <= own <= there
    assert "IncompleteOutputs" in there
    assert all(issubclass(getattr(fusewire, name), fusewire.FusewireError) for name in own)


def test_importing_loads_nothing_that_is_not_needed() -> None:
    code = (
        "import sys, fusewire; dir(fusewire); fusewire.__version__;"
        "print([m for m in ('fusewire._C', 'numpy', 'pydantic', 'rich') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("package", [fusewire, fusewire_client])
def test_versions_are_those_of_the_packages(package: object) -> None:
    name = package.__name__.replace("_", "-")  # type: ignore[attr-defined]
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} runs from its source tree")
    assert package.__version__ == installed  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [fusewire.Embedder, fusewire.Reranker, fusewire.Classifier])
def test_help_explains_every_argument_of_a_class(kind: type) -> None:
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    arguments = list(inspect.signature(kind).parameters)
    assert len(arguments) == 9
    assert text.count("Args:\n") >= 2  # of the class, and of what it is for
    for name in arguments:
        assert re.search(rf"^ \|          +{name}: [A-Z`]", text, re.M), name


@pytest.mark.parametrize(
    "function",
    [
        fusewire.load,
        fusewire.from_torch,
        fusewire.Embedder.encode,
        fusewire.Reranker.rank,
        fusewire.Classifier.__call__,
        fusewire.LLM.generate,
        fusewire_client.Client.embed,
        fusewire_client.AsyncClient.embed,
        fusewire_client.Client.chat,
        fusewire_client.Client.rerank,
    ],
)
def test_signatures_are_typed(function: object) -> None:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    assert signature.return_annotation is not inspect.Signature.empty
    for name, parameter in list(signature.parameters.items())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty, name
    assert inspect.getdoc(function)
