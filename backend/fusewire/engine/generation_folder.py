"""What an engine that generates takes from a folder: the model, how it reads speech, and what
requests to it ask for unless they say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire import kernels
from fusewire.audio import LogMel
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.source_pages import Source
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.generation.defaults import generation_config, generation_defaults
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import max_new_tokens
from fusewire.generation.speech import SpeechTokens, read_speech
from fusewire.models import Seq2SeqModel, SpeechModel, load_decoder
from fusewire.placement import Placement

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel


def load_model(folder: Path | str, settings: GenerationSettings, device: str) -> DecoderModel:
    """Loads the model of a folder onto `device`. CheckpointError, ConfigurationError."""
    place = Placement(
        device,
        settings.dtype,
        settings.quantize,
        settings.quantize_skipped,
        settings.kv_cache_dtype,
    )
    try:
        model = load_decoder(folder, place)
    except kernels.Error as error:  # no room, or no kernels for this model on this device
        raise ConfigurationError(f"{place.device}: {error}") from None
    place.check_skipped()
    return model


def speech_of(model: DecoderModel, folder: Path) -> tuple[LogMel | None, SpeechTokens | None]:
    """The features that a model of speech reads, and its tokens; (None, None) for another model.
    CheckpointError where the folder does not say them, or other features than the model's."""
    if not isinstance(model, SpeechModel):
        return None, None
    sizes = model.features_shape, model.max_source_length, model.vocab_size
    return read_speech(folder, *sizes, model.eos_token_ids, model.decoder_heads)


def defaults_of(model: DecoderModel, folder: Path, speech: SpeechTokens | None) -> dict[str, Any]:
    """The `defaults` of `read_parameters`; CheckpointError."""
    if not isinstance(model, Seq2SeqModel):
        return generation_defaults(folder)
    forced = {
        "forced_bos_token_id": model.forced_bos_token_id,
        "forced_eos_token_id": model.forced_eos_token_id or None,
    }
    return {**forced, **generation_defaults(folder, encoder_decoder=True, speech=speech)}


def check_beams(
    folder: Path,
    parameters: GenerationParameters,
    limits: GenerationLimits,
    check: Callable[[GenerationSequence], None],
) -> None:
    """ConfigurationError where the folder asks for a search that has no room after the shortest
    prompt, so that each request would be refused that does not ask for another. `parameters`: those
    of a request that asks for nothing; `check`: raises InvalidInput for a sequence that could never
    run."""
    if not parameters.searches:
        return
    source = None
    if limits.source is not None:
        source = Source([0] * (limits.source.max_length if limits.speech else 1))
    shortest = GenerationSequence(
        token_ids=[0],
        most_tokens=1 + max_new_tokens(parameters, 1, limits),
        beams=parameters.num_beams,
        source=source,
    )
    try:
        check(shortest)
    except InvalidInput as error:
        _, file = generation_config(folder)
        raise ConfigurationError(f"{file}: {error}") from None
