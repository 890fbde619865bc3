"""The tokens that an encoder-decoder model writes whatever the logits say."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.models.config import Config


@dataclass(frozen=True)
class TargetTokens:
    """The token in front of a target, its first and its last one, which may be any of some; None or
    () for no such token: transformers' decoder_start_token_id, forced_bos_token_id and
    forced_eos_token_id."""

    decoder_start: int | None = None
    forced_bos: int | None = None
    forced_eos: tuple[int, ...] = ()
    bos: int | None = None  # stands in front where decoder_start is None

    def where_given(self, config: Config) -> TargetTokens:
        """These, where config.json says nothing else."""
        return TargetTokens(
            config.token_id("decoder_start_token_id", self.decoder_start),
            config.token_id("forced_bos_token_id", self.forced_bos),
            config.token_ids("forced_eos_token_id", self.forced_eos),
            config.token_id("bos_token_id", self.bos),
        )

    @property
    def first(self) -> int | None:
        return self.bos if self.decoder_start is None else self.decoder_start
