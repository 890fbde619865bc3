"""A Jinja sandbox for chat templates of untrusted folders, without access to Python's internals.

It does not limit the cost of a template: fusewire.text_workers renders in a process with limits.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment in which transformers renders chat templates.

    Compiling a template does not evaluate its constants, which could take for ever.
    """

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            optimized=False,
            finalize=_unchanged,
        )
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def compiled(self, text: str) -> Template:
        """Returns the compiled template. Raises TemplateSyntaxError and SecurityError."""
        tree = self.parse(text)
        for reference in tree.find_all(nodes.NSRef):
            _check_attribute(reference.attr)
        for modifier in tree.find_all(nodes.EvalContextModifier):
            if any(not isinstance(option.value, nodes.Const) for option in modifier.options):
                raise SecurityError("it computes whether to escape")
        return self.from_string(tree)


@pass_context  # there is no context while a template is compiled
def _unchanged(context: Context, value: Any) -> Any:
    return value


class _Namespace(Namespace):
    """jinja's namespace, without names that begin with an underscore: those are Python's own."""

    def __init__(*arguments: Any, **named: Any) -> None:  # so that `self` is a valid name
        self, *rest = arguments
        values = dict(*rest, **named)
        for name in values:
            _check_attribute(str(name))
        Namespace.__init__(self, values)


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's text, for training. Here its body is plain content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"it sets the attribute {name[:40]!r} of a namespace")
