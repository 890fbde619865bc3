"""Small random Whisper models in Hugging Face folders: audio of up to a second, and a vocabulary in
the order of the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.reference import randomise

# On tiny models, two thread pools that compete for the cores are slower than one thread.
torch.set_num_threads(1)

SECONDS = 1
POSITIONS = 50 * SECONDS
BINS = 20

# Text tokens, then special tokens, then a timestamp for each position of the encoder and its end.
WORDS = 80
(
    EOS,
    START,
    ENGLISH,
    GERMAN,
    FRENCH,
    TRANSLATE,
    TRANSCRIBE,
    _,
    PREVIOUS,
    NO_SPEECH,
    NO_TIMESTAMPS,
) = range(WORDS, WORDS + 11)
TIMESTAMPS = NO_TIMESTAMPS + 1
VOCABULARY = TIMESTAMPS + POSITIONS + 1

GENERATION: dict[str, Any] = {
    "begin_suppress_tokens": [7, EOS],
    "suppress_tokens": [1, 2, 30, START, ENGLISH, GERMAN, FRENCH, TRANSLATE, TRANSCRIBE, PREVIOUS],
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|fr|>": FRENCH},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "max_initial_timestamp_index": 5,
    "prev_sot_token_id": PREVIOUS,
    "alignment_heads": [[0, 1], [1, 0], [1, 2]],
    "return_timestamps": False,
    "max_length": 64,
}


def tiny_whisper(folder: Path | str, *, seed: int = 0, **sizes: Any) -> Any:
    """Writes config.json, generation_config.json and the weights into `folder`; returns the
    transformers model: fp32, eager attention, eval mode. `sizes` are keys of config.json."""
    own: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": 48,
        "num_mel_bins": BINS,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 56,
        "decoder_ffn_dim": 40,
        "max_source_positions": POSITIONS,
        "max_target_positions": 64,
        "pad_token_id": EOS,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": START,
        "begin_suppress_tokens": None,
    }
    config = transformers.WhisperConfig(**own | sizes)
    made = transformers.WhisperForConditionalGeneration._from_config
    model = made(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    for key, value in GENERATION.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    return model


def random_features(count: int, seed: int = 0, bins: int = BINS) -> list[NDArray[np.float32]]:
    """Returns features [frames, bins] with values in the range of log-mel features."""
    rng = np.random.default_rng(seed)
    return list(rng.normal(0, 0.6, (count, 2 * POSITIONS, bins)).astype(np.float32))


def as_transformers(features: NDArray[np.float32], device: str = "cpu") -> torch.Tensor:
    """Returns the features as [1, bins, frames]."""
    return torch.from_numpy(np.ascontiguousarray(features.T))[None].to(device)


def teacher_forced_logits(
    reference: Any, features: Sequence[NDArray[np.float32]], targets: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Returns [length, vocabulary] for each target, computed alone and without a cache."""
    device = next(reference.parameters()).device
    answers = []
    for each, target in zip(features, targets, strict=True):
        with torch.no_grad():
            output = reference(
                input_features=as_transformers(each, device),
                decoder_input_ids=torch.tensor([target], device=device),
                use_cache=False,
            )
        answers.append(output.logits[0].float().cpu().numpy())
    return answers


def tiny_whisper_folder(folder: Path, *, seconds: int = SECONDS, **sizes: Any) -> Any:
    """As `tiny_whisper`, with the files for audio and text: each text token is a letter. Its window
    is `seconds` long."""
    positions = POSITIONS // SECONDS * seconds
    vocabulary = TIMESTAMPS + positions + 1
    sizes = {"max_source_positions": positions, "vocab_size": vocabulary, **sizes}
    model = tiny_whisper(folder, **sizes)
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins, chunk_length=seconds
    )
    extractor.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:WORDS]
    backend = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe"]
    special += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    backend.add_special_tokens([f"<|{name}|>" for name in special])
    stamps = [f"<|{0.02 * place:.2f}|>" for place in range(positions + 1)]
    backend.add_tokens([AddedToken(stamp, normalized=False, special=False) for stamp in stamps])
    assert backend.get_vocab_size() == vocabulary
    backend.save(str(folder / "tokenizer.json"))
    return model
