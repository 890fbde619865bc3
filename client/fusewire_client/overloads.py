"""The return types of `generate` and `chat` for type checkers, which depend on their arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, Protocol, overload

from .answers import Generated
from .prompts import Ids, Messages


class Generate(Protocol):
    """The type of `Client.generate`."""

    @overload
    def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[False] = ...,
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> str: ...
    @overload
    def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[True],
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> Generated: ...
    @overload
    def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[False] = ...,
        stream: Literal[True],
        **given: Any,
    ) -> Iterator[str]: ...
    @overload
    def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[True],
        stream: Literal[True],
        **given: Any,
    ) -> Iterator[Generated]: ...
    @overload
    def __call__(self, prompt: str | None = ..., *, n: int, **given: Any) -> list[Any]: ...
    @overload
    def __call__(self, prompt: Sequence[str], **given: Any) -> list[Any]: ...


class Chat(Protocol):
    """The type of `Client.chat`."""

    @overload
    def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[False] = ...,
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> str: ...
    @overload
    def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[True],
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> Generated: ...
    @overload
    def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[False] = ...,
        stream: Literal[True],
        **given: Any,
    ) -> Iterator[str]: ...
    @overload
    def __call__(
        self, messages: Messages, *, details: Literal[True], stream: Literal[True], **given: Any
    ) -> Iterator[Generated]: ...
    @overload
    def __call__(self, messages: Messages, *, n: int, **given: Any) -> list[Any]: ...


class AsyncGenerate(Protocol):
    """The type of `AsyncClient.generate`."""

    @overload
    async def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[False] = ...,
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> str: ...
    @overload
    async def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[True],
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> Generated: ...
    @overload
    async def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[False] = ...,
        stream: Literal[True],
        **given: Any,
    ) -> AsyncIterator[str]: ...
    @overload
    async def __call__(
        self,
        prompt: str | None = ...,
        *,
        ids: Ids = ...,
        details: Literal[True],
        stream: Literal[True],
        **given: Any,
    ) -> AsyncIterator[Generated]: ...
    @overload
    async def __call__(self, prompt: str | None = ..., *, n: int, **given: Any) -> list[Any]: ...
    @overload
    async def __call__(self, prompt: Sequence[str], **given: Any) -> list[Any]: ...


class AsyncChat(Protocol):
    """The type of `AsyncClient.chat`."""

    @overload
    async def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[False] = ...,
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> str: ...
    @overload
    async def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[True],
        stream: Literal[False] = ...,
        n: None = ...,
        **given: Any,
    ) -> Generated: ...
    @overload
    async def __call__(
        self,
        messages: Messages,
        *,
        details: Literal[False] = ...,
        stream: Literal[True],
        **given: Any,
    ) -> AsyncIterator[str]: ...
    @overload
    async def __call__(
        self, messages: Messages, *, details: Literal[True], stream: Literal[True], **given: Any
    ) -> AsyncIterator[Generated]: ...
    @overload
    async def __call__(self, messages: Messages, *, n: int, **given: Any) -> list[Any]: ...
