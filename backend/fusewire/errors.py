"""Every exception fusewire raises on purpose, by whose fault it is.

The serving layer maps the type to a status code and passes the text through unchanged, so a
message must stand alone: what, got, wanted, remedy. It never carries a traceback.
"""

from __future__ import annotations

from copy import copy
from typing import Self

_LONGEST_NAME = 64


class FusewireError(Exception):
    """Base of all errors that fusewire raises deliberately. One that several requests get is copied
    for each: an error collects the tracebacks of all who raise it."""

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        return twin


class InvalidInput(FusewireError):
    """A request's fault: answered with INVALID_ARG, the other requests are not disturbed."""

    def __init__(self, field: str, got: object, wanted: str, remedy: str) -> None:
        self.field = field
        # A field may be a name that the client made up: of any length, with any characters.
        plain = field.isascii() and field.isidentifier() and len(field) <= _LONGEST_NAME
        shown = field if plain else repr(field[:_LONGEST_NAME])
        super().__init__(f"{shown}: got {got}, wanted {wanted}; {remedy}")

    def at(self, where: str) -> Self:
        """The same error, of one of several inputs: `where` says of which."""
        twin = copy(self)
        twin.args = (f"{where}: {self}",)
        return twin


class Unavailable(FusewireError):
    """Nobody's fault: no room or no time for a request now. Answered with UNAVAILABLE, at once; the
    same request may succeed later."""


class CheckpointError(FusewireError):
    """A model folder's fault: missing, damaged, hostile or unsupported files."""


class ConfigurationError(FusewireError):
    """An operator's fault: an unknown, ill-typed or contradictory setting."""
