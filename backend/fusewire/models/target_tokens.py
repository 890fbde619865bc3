"""The tokens of an encoder-decoder model's target that are fixed, whatever the logits are."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.models.config import Config


@dataclass(frozen=True)
class TargetTokens:
    """The token before a target, its first token, and its last token, which may be one of several;
    None or () for none: transformers' decoder_start_token_id, forced_bos_token_id and
    forced_eos_token_id."""

    decoder_start: int | None = None
    forced_bos: int | None = None
    forced_eos: tuple[int, ...] = ()
    bos: int | None = None  # the token before a target if decoder_start is None

    def where_given(self, config: Config) -> TargetTokens:
        """Returns the tokens of config.json, with these as defaults."""
        return TargetTokens(
            config.token_id("decoder_start_token_id", self.decoder_start),
            config.token_id("forced_bos_token_id", self.forced_bos),
            config.token_ids("forced_eos_token_id", self.forced_eos),
            config.token_id("bos_token_id", self.bos),
        )

    @property
    def first(self) -> int | None:
        return self.bos if self.decoder_start is None else self.decoder_start
