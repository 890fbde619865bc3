"""A request whose language is heard first, by a request of its own, which stores what the encoder
makes of the audio for both."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.request import failure
from fusewire.engine.request_chain import Link, RequestChain
from fusewire.errors import FusewireError


class LanguageDetection:
    """Takes the events of the first request; the second one's go to the callback."""

    def __init__(self, go_on: Callable[[int], Link], callback: Callable[[Event], None]) -> None:
        """`go_on`: submits the second request, once the token of the language is known."""
        self._go_on = go_on
        self._callback = callback
        self._chain = RequestChain()
        self._heard = False
        self.begun, self.cancel = self._chain.begun, self._chain.cancel

    def heard(self, event: Event) -> None:
        """Takes an event of the first request, in the engine's thread."""
        if isinstance(event, FusewireError):
            self._callback(event)
            return
        assert isinstance(event, Delta)
        token = event.token
        assert token is not None
        try:
            self._chain.follow(lambda: self._go_on(token))
            self._heard = True
        except Exception as error:
            self._callback(failure(error))

    def num_output_tokens(self) -> int:
        """Tokens that the second request has generated so far."""
        return self._chain.num_output_tokens() if self._heard else 0
