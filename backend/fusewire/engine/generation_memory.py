"""How long sequences may get, how many run at once, and how many pages there are for their keys and
values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusewire import kernels
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import ConfigurationError
from fusewire.generation.limits import GenerationLimits, SourceLimits
from fusewire.generation.speech import SpeechTokens
from fusewire.models.seq2seq_model import Seq2SeqModel
from fusewire.models.speech_model import SpeechModel
from fusewire.settings import check_max_length

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

PAGE_SIZE = 16  # positions; a sequence's last page is half empty on average
# Generated tokens of one request, over its continuations, in sequences of full length: a request
# must not occupy a server for as long as it likes.
MOST_FULL_SEQUENCES = 8
# Sequences that run at once by default. On a GPU a step of 256 takes about twice as long as one of
# 64. Few are of full length, so that the KV cache has room for fewer of those. Sources are long.
MOST_SEQUENCES, FULL_SEQUENCES = 256, 64
# Tokens of a step that may take long, which computes prompts faster, and the memory beside the
# weights of which a tenth, all that the KV cache leaves, holds their activations in a 70B model.
LARGE_STEP_TOKENS, LARGE_STEP_FREE_BYTES = 8192, 32 << 30
# Share of the device's free memory that the KV cache takes by default. A machine has other work
# than ours; on a GPU a step's activations and the libraries need some.
FREE_SHARE = {"cpu": 0.25, "cuda": 0.9}


def sequences_of(model: DecoderModel, settings: GenerationSettings) -> int:
    """How many sequences run at once."""
    if settings.max_sequences is not None:
        return settings.max_sequences
    many = model.place.device != "cpu" and not isinstance(model, Seq2SeqModel)
    return min(MOST_SEQUENCES if many else FULL_SEQUENCES, settings.max_batch_tokens)


def with_large_steps(model: DecoderModel, settings: GenerationSettings) -> GenerationSettings:
    """The settings with larger steps, if they do not set max_batch_tokens and the model is on a GPU
    with memory for their activations."""
    if model.place.device == "cpu" or "max_batch_tokens" in settings.model_fields_set:
        return settings
    free_bytes = kernels.default_allocator(model.place.device).free_bytes()
    if free_bytes < LARGE_STEP_FREE_BYTES:
        return settings
    return settings.model_copy(update={"max_batch_tokens": LARGE_STEP_TOKENS})


def limits_of(
    model: DecoderModel, settings: GenerationSettings, speech: SpeechTokens | None = None
) -> GenerationLimits:
    """The limits of requests. ConfigurationError when the settings ask for more positions than the
    model has, or for less than the audio that a model of `speech` reads."""
    check_max_length(settings.max_length, model.max_length)
    longest = settings.max_length or model.max_length
    tokens = longest * MOST_FULL_SEQUENCES
    source = None
    if isinstance(model, SpeechModel):
        source = _audio_limits(model, settings)
    elif isinstance(model, Seq2SeqModel):
        source = _source_limits(model, settings)
    return GenerationLimits(
        model.vocab_size,
        longest,
        tokens,
        sequences_of(model, settings),
        source,
        speech,
        settings.max_audio_seconds,
    )


def _audio_limits(model: SpeechModel, settings: GenerationSettings) -> SourceLimits:
    if settings.max_batch_tokens < model.max_source_length:
        raise ConfigurationError(
            f"max_batch_tokens: got {settings.max_batch_tokens}, wanted at least "
            f"{model.max_source_length}, the positions of the model's encoder, which reads a "
            "window in one step; raise or remove it"
        )
    reason = "the positions of the model's encoder"
    return SourceLimits(model.source_vocab_size, model.max_source_length, reason)


def _source_limits(model: Seq2SeqModel, settings: GenerationSettings) -> SourceLimits:
    lengths = {
        "the positions of the model's encoder": model.max_source_length,
        "max_length of this deployment": settings.max_length or model.max_source_length,
        "max_batch_tokens of this deployment, as an encoder reads a text in one step": (
            settings.max_batch_tokens
        ),
    }
    reason = min(lengths, key=lengths.__getitem__)
    return SourceLimits(model.source_vocab_size, lengths[reason], reason)


def pages_for(model: DecoderModel, settings: GenerationSettings, limits: GenerationLimits) -> int:
    """Pages of PAGE_SIZE tokens, as the settings say; ConfigurationError when one sequence of
    the greatest length would not fit, with its source where it has one."""
    page_bytes = PAGE_SIZE * model.bytes_per_token
    lengths = [limits.max_length, limits.source.max_length if limits.source else 0]
    of_one = sum(-(-length // PAGE_SIZE) for length in lengths)
    if settings.kv_cache_mib is not None:
        pages = (settings.kv_cache_mib << 20) // page_bytes
    else:
        device = model.place.device
        free_bytes = kernels.default_allocator(device).free_bytes()
        share = FREE_SHARE[device.partition(":")[0]]
        sequences = settings.max_sequences or FULL_SEQUENCES
        pages = min(of_one * sequences, int(free_bytes * share) // page_bytes)
    if pages < of_one:
        raise ConfigurationError(
            f"kv_cache_mib: got room for {pages * PAGE_SIZE} tokens, wanted at least "
            f"{sum(lengths)}, one sequence of max_length"
            f"{' and its source' if limits.source else ''}; raise it, or lower max_length"
        )
    return pages


def cache_for(model: DecoderModel, pages: int) -> DecoderCache:
    """A KV cache with `pages` of PAGE_SIZE tokens; ConfigurationError where there is no memory for
    it."""
    try:
        return model.new_cache(pages, PAGE_SIZE)
    except kernels.OutOfMemory as error:
        mib = -(-pages * PAGE_SIZE * model.bytes_per_token >> 20)
        reason = str(error).partition("; raise the cap")[0]
        raise ConfigurationError(
            f"kv_cache_mib: got {mib}, wanted what there is room for ({reason}); lower it, or "
            "max_sequences or max_length, of which it is the default"
        ) from None
