"""Jinja for untrusted templates: sandboxed, and of bounded work and memory.

jinja2's sandbox keeps a template from Python's internals and from long ranges, but not from nested
loops, macros that call themselves, or text that doubles forty times. So a template is compiled with
a price on every iteration of a loop, every call and everything that makes a value larger, and a
rendering that runs out of its budget, or of time, ends.
"""

from __future__ import annotations

import functools
import math
import re
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# Turns, calls, entries and lines of text made: some seconds' work. Four thousand messages of a
# thousand characters take up to a third of it.
MOST_UNITS = 1 << 21
_LINE = 64  # characters of text for the price of one unit
# For what has no price (comparing, slicing long texts); a rendering takes milliseconds.
MOST_SECONDS = 5.0
# Widths, counts and digits that a template may hand to a filter or method.
_MOST_COUNT = 1 << 20
_MOST_INT_BITS = 4096

# Filters and methods whose result is as large as a value times an argument.
_PADDING = frozenset(("center", "expandtabs", "indent", "ljust", "rjust", "zfill"))
_REPEATING = frozenset(("batch", "join", "replace", "slice", "translate", "urlize", "wordwrap"))
# A width in a format, of a million characters or taken from an argument.
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*\*|[0-9]{5}|\{[^{}]*\{")

# What has parts; a dictionary's views show them too.
_NONE: dict[str, str] = {}
_VIEWS = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))
_CONTAINERS = (dict, list, tuple, set, frozenset, *_VIEWS)

# Names that no template can spell.
_TICK, _JOINED, _MEASURED = "fusewire:tick", "fusewire:joined", "fusewire:measured"


class OverBudget(TemplateError):
    """A rendering that took more work, memory or time than any conversation needs."""


class _Budget:
    def __init__(self) -> None:
        self._units = MOST_UNITS
        self._deadline = time.monotonic() + MOST_SECONDS

    def spend(self, units: int) -> None:
        self._units -= units
        if self._units < 0 or time.monotonic() > self._deadline:
            raise OverBudget("it takes too much work")


_active: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def budget() -> Iterator[None]:
    """The budget of one rendering. Outside, nothing that has a price can be computed, so compiling
    a template computes none of its constants."""
    token = _active.set(_Budget())
    try:
        yield
    finally:
        _active.reset(token)


def measured(value: Any) -> Any:
    """`value`, paid for by its size with all that is inside it, as often as it is inside."""
    spend = _active.get().spend
    for item in _parts(value):
        if isinstance(item, (str, bytes)):
            spend(1 + len(item) // _LINE)
        elif isinstance(item, _CONTAINERS):
            spend(1 + len(item))
        elif isinstance(item, int) and item.bit_length() > _MOST_INT_BITS:
            raise OverBudget("its numbers grow too large")
        else:
            spend(1)
    return value


def _parts(value: Any) -> Iterator[Any]:
    """`value` and all that is inside it."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, _CONTAINERS):
            stack.extend(item)


def _extent(value: Any) -> int:
    """Characters and entries inside of `value`, all the way down."""
    return sum(len(item) if hasattr(item, "__len__") else 1 for item in _parts(value))


def _listed(value: Any) -> Any:
    """A generator's values, paid for one by one; anything else as it is."""
    if not isinstance(value, Iterator) or isinstance(value, LoopContext):
        return value
    return [measured(item) for item in value]


def _prepay(name: str, arguments: list[Any]) -> None:
    """Pays for what `name` may make of its arguments, before it does."""
    counts = [abs(item) for item in arguments if isinstance(item, int)]
    if any(count > _MOST_COUNT for count in counts):
        raise OverBudget(f"it asks for {max(counts)} as a width or count")
    if name in _PADDING or name in _REPEATING:
        size = len if name == "join" else _extent
        sizes = [size(item) for item in arguments if hasattr(item, "__len__")]
        _active.get().spend(math.prod(1 + size for size in sizes + counts) // _LINE)


def _priced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays. Its first argument may be jinja's context, which costs nothing."""

    @functools.wraps(function)  # with the mark that asks for the context
    def paying(*arguments: Any, **named: Any) -> Any:
        taken = [_listed(item) for item in arguments]
        values = [*taken, *named.values()]
        if name == "format":
            _prepay_format(*values)
        if name not in ("default", "d"):
            _prepay(name, values)
        return measured(function(*taken, **named))

    return paying


def _prepay_format(text: Any, *values: Any) -> None:
    """Pays for each value in each field of a format."""
    if isinstance(text, str):
        if _WIDE_FORMAT.search(text):
            raise OverBudget("it formats to a width without bound")
        fields = text.count("%") + text.count("{")
        _active.get().spend(fields * _extent(values) // _LINE)


class _Pricing(NodeTransformer):
    """Puts the prices into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        return self._tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), _JOINED, node)

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, _MEASURED, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, _MEASURED, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, _MEASURED, node) if node.ctx == "load" else node

    def visit_NSRef(self, node: nodes.NSRef) -> nodes.NSRef:
        _check_attribute(node.attr)
        return node

    def _tick(self, node: Any) -> Any:
        self.generic_visit(node)
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        price = _filtered(nodes.Const(1 + text // _LINE), _TICK, node)
        node.body.insert(0, nodes.ExprStmt(price).set_lineno(node.lineno))
        return node


def _filtered(node: nodes.Expr, name: str, at: nodes.Node) -> nodes.Filter:
    made = nodes.Filter(node, name, [], [], None, None)
    made.set_lineno(at.lineno)
    return made


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"it sets the attribute {name[:40]!r} of a namespace")


class _Namespace(Namespace):
    """jinja's, without names that begin with an underscore: those are Python's own."""

    def __init__(*arguments: Any, **named: Any) -> None:  # any name is free, `self` too
        self, *rest = arguments
        values = dict(*rest, **named)
        for name in values:
            _check_attribute(str(name))
        Namespace.__init__(self, values)

    def __repr__(self) -> str:  # jinja's shows what is inside, which may be itself
        return "<Namespace>"


class _GenerationTag(Extension):
    """{% generation %}: marks what the assistant says, for training; here it is plain content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment in which transformers renders chat templates, with prices."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=measured,
        )
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def price_filters(self) -> None:
        """To be called once, after the last filter was added."""
        self.filters = {name: _priced(name, call) for name, call in self.filters.items()}
        self.filters[_MEASURED] = measured
        self.filters[_JOINED] = lambda values: "".join(map(str, measured(values)))
        self.filters[_TICK] = lambda price: _active.get().spend(price)

    def compiled(self, text: str) -> Template:
        """Raises TemplateSyntaxError and SecurityError."""
        tree = _Pricing().visit(self.parse(text))
        return self.from_string(tree.set_environment(self))

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(__callee, "__name__", "")
        if isinstance(__callee, types.BuiltinMethodType):
            args = tuple(_listed(item) for item in args)
            _prepay(name, [__callee.__self__, *args, *kwargs.values()])
        return measured(super().call(__context, __callee, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        counts = [item for item in (left, right) if isinstance(item, int)]
        if operator == "*" and len(counts) == 1:
            repeated = right if left is counts[0] else left
            line = _LINE if isinstance(repeated, str) else 1
            size = len(repeated) if hasattr(repeated, "__len__") else 0
            _active.get().spend(size * max(counts[0], 0) // line)
        elif operator == "**" and len(counts) == 2:
            if left.bit_length() * right > _MOST_INT_BITS:
                raise OverBudget("its numbers grow too large")
        elif operator == "%":
            _prepay_format(left, right)
        return measured(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def paying(*arguments: Any, **named: Any) -> Any:
            _prepay_format(value.__self__, *arguments, *named.values())
            return wrapped(*arguments, **named)

        return paying
