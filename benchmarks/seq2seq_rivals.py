"""The systems whose translation is compared, greedily or with beam search, from one Marian folder.

A system is a function `(folder, threads) -> translate`. `translate(sources, beams, tokens)` returns
the best text of each source, with this many tokens. Each system runs in its own process (see
`worker.py`), so imports stay inside the functions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.ctranslate2_module import import_ctranslate2

Tokens = list[list[int]]
Translate = Callable[[Tokens, int, int], Tokens]

# In `final_logits_bias` it excludes a token.
_NEVER = -1e9


def fusewire(folder: Path, threads: int, quantize: Literal["none", "int8"] = "none") -> Translate:
    """Our engine as it serves: requests submitted together, an event for each token, with its
    text."""
    from fusewire.engine.generation import GenerationEngine
    from fusewire.engine.generation_settings import GenerationSettings

    from benchmarks.translated import translated

    # The same sources are sent again, and prefix cache hits would spoil the measurement.
    settings = GenerationSettings(
        threads=threads, prefix_caching=False, max_sequences=256, quantize=quantize
    )
    engine = GenerationEngine(folder, settings)

    return lambda sources, beams, tokens: translated(engine, sources, beams, tokens).tokens


def ctranslate2(folder: Path, threads: int, compute_type: str = "float32") -> Translate:
    """CTranslate2, converted by its own converter; one batch, whose encoder removes padding."""
    import transformers

    ct2 = import_ctranslate2()

    _quiet(transformers)
    with tempfile.TemporaryDirectory() as work:
        ct2.converters.TransformersConverter(str(folder)).convert(f"{work}/model")
        words = json.loads(Path(work, "model", "shared_vocabulary.json").read_text())
        translator = ct2.Translator(
            f"{work}/model", inter_threads=1, intra_threads=threads, compute_type=compute_type
        )
    ids = {word: index for index, word in enumerate(words)}

    def translate(sources: Tokens, beams: int, tokens: int) -> Tokens:
        found = translator.translate_batch(
            [[words[token] for token in source] for source in sources],
            beam_size=beams,
            max_decoding_length=tokens,
        )
        return [[ids[word] for word in each.hypotheses[0]] for each in found]

    return translate


def transformers_eager(folder: Path, threads: int) -> Translate:
    """transformers' `generate` with its defaults: padded, SDPA, a dynamic cache."""
    import torch
    import transformers

    _quiet(transformers)
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    pad = model.config.pad_token_id

    def translate(sources: Tokens, beams: int, tokens: int) -> Tokens:
        longest = max(map(len, sources))
        ids = torch.tensor([source + [pad] * (longest - len(source)) for source in sources])
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=(ids != pad).long(),
                num_beams=beams,
                max_new_tokens=tokens,
                do_sample=False,
            )
        return found[:, 1:].tolist()

    return translate


# All in fp32 except the last two.
SYSTEMS: dict[str, Callable[[Path, int], Translate]] = {
    "fusewire": fusewire,
    "ctranslate2": ctranslate2,
    "transformers": transformers_eager,
    "fusewire-int8": partial(fusewire, quantize="int8"),
    "ctranslate2-int8": partial(ctranslate2, compute_type="int8"),
}
PACKAGES = {"fusewire-int8": "fusewire", "ctranslate2-int8": "ctranslate2"}


def write_marian(folder: Path, **changes: Any) -> int:
    """Writes Transformer-base as a Marian folder: 6 + 6 layers of seeded random weights, whose
    texts never end by themselves, and a tokenizer with a token string for each of its ids, for
    CTranslate2's converter. `changes`: to its configuration. Returns the size of the vocabulary."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    _quiet(transformers)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 32768, "d_model": 512} | changes
    last = sizes["vocab_size"] - 1
    for side in ("encoder", "decoder"):
        shape = {f"{side}_layers": 6, f"{side}_ffn_dim": 2048, f"{side}_attention_heads": 8}
        sizes = shape | sizes
    config = transformers.MarianConfig(
        **sizes,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=last,
        decoder_start_token_id=last,
        forced_eos_token_id=None,
        # Texts change from token to token; smaller weights with a tied head would repeat tokens.
        init_std=0.03,
        tie_word_embeddings=False,
    )
    # Fields that CTranslate2's converter reads and that configurations of Marian's models have.
    config.normalize_before = config.normalize_embedding = False
    model = transformers.MarianMTModel(config).eval()
    for token in (0, last):
        model.final_logits_bias[0, token] = _NEVER
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=0, pad_token_id=last, decoder_start_token_id=last
    )
    model.save_pretrained(folder)
    vocabulary = {"</s>": 0, "<unk>": 1, "<pad>": last} | {f"w{n}": n for n in range(2, last)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")),
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    ).save_pretrained(folder)
    return last + 1


def _quiet(transformers: Any) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
