"""The tokenizer's files of translation models, and transformers' tokenizer of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import transformers
from fusewire.text.language_codes import M2M_100, NLLB

from tests.text.sentencepiece_models import processor, t5_folder, trained

TARGET_TEXTS = ["Ein Satz, der anders geschnitten wird.", "Das Übrige weiß niemand so genau."]


def pieces_of(model: bytes) -> list[str]:
    theirs = processor(model)
    return [theirs.id_to_piece(index) for index in range(theirs.get_piece_size())]


def vocabulary(names: list[str], *ends: str) -> dict[str, int]:
    """Returns ids in another order than the file's; every seventh piece has none."""
    kept = [name for index, name in enumerate(names) if index % 7 or name.startswith("<")]
    shuffled = np.random.default_rng(0).permutation(kept).tolist()
    return {name: index for index, name in enumerate([*shuffled, *ends])}


def _write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def marian_folder(folder: Path, **options: Any) -> Path:
    source, target = trained(**options), trained(model_type="bpe")
    names = list(dict.fromkeys([*pieces_of(source), *pieces_of(target)]))
    _write(
        folder,
        vocab=vocabulary(names, ">>fra<<", ">>deu_Latn<<", "<pad>"),
        tokenizer_config={"source_lang": "eng"},
        config={"model_type": "marian"},
    )
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    return folder


def separate_marian_folder(folder: Path) -> Path:
    """Writes a folder in which each side has its own ids, except for the special tokens."""
    marian_folder(folder)
    special = ["</s>", "<unk>", "<pad>"]
    for name, side in (("vocab", "source"), ("target_vocab", "target")):
        pieces = pieces_of((folder / f"{side}.spm").read_bytes())
        names = [*special, *(each for each in vocabulary(pieces) if each not in special)]
        _write(folder, **{name: {each: index for index, each in enumerate(names)}})
    return _write(folder, tokenizer_config={"separate_vocabs": True})


def m2m_100_folder(folder: Path, **config: Any) -> Path:
    model = trained(model_type="bpe")
    _write(
        folder,
        vocab=vocabulary(pieces_of(model), "<pad>"),
        tokenizer_config={
            "tokenizer_class": "M2M100Tokenizer",
            "src_lang": "de",
            "additional_special_tokens": [f"__{code}__" for code in M2M_100],
        }
        | config,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    return folder


def fairseq_folder(kind: str, folder: Path, **config: Any) -> Path:
    """`kind`: the kind of tokenizer, as MBart50. transformers reads a unigram model for all but
    NLLB."""
    model = trained(model_type="bpe" if kind == "Nllb" else "unigram")
    if kind == "Nllb":  # transformers only knows the NLLB languages that the folder lists
        last = len(pieces_of(model)) + 1
        special = {name: index for index, name in enumerate(("<s>", "<pad>", "</s>", "<unk>"))}
        special |= {name: last + index for index, name in enumerate((*NLLB, "<mask>"))}
        config["added_tokens_decoder"] = {
            str(index): {"content": name, "lstrip": name == "<mask>", "special": True}
            for name, index in special.items()
        }
        config["additional_special_tokens"] = list(NLLB)
    _write(folder, tokenizer_config={"tokenizer_class": f"{kind}Tokenizer"} | config)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    return folder


def plbart_folder(folder: Path, **config: Any) -> Path:
    _write(folder, tokenizer_config={"tokenizer_class": "PLBartTokenizer"} | config)
    (folder / "sentencepiece.bpe.model").write_bytes(trained())
    return folder


FAIRSEQ: dict[str, Callable[..., Path]] = {
    "nllb": partial(fairseq_folder, "Nllb"),
    "mbart": partial(fairseq_folder, "MBart"),
    "mbart50": partial(fairseq_folder, "MBart50"),
    "xlm-r": partial(fairseq_folder, "XLMRoberta"),
}
PYTHON_CLASSES: dict[str, Callable[..., Path]] = {
    "marian": marian_folder,
    "marian, separate": separate_marian_folder,
    "m2m_100": m2m_100_folder,
    "plbart": plbart_folder,
    "plbart, multi": partial(plbart_folder, language_codes="multi", src_lang="java"),
}
FOLDERS: dict[str, Callable[..., Path]] = {"t5": t5_folder, **PYTHON_CLASSES, **FAIRSEQ}


class SlowFairseq(transformers.PreTrainedTokenizer):
    """Splits texts as transformers' fairseq classes in Python do, which its fast ones only
    approximate: special tokens by transformers, the text between them by sentencepiece."""

    def __init__(self, fast: Any, model: sentencepiece.SentencePieceProcessor) -> None:
        self.fast = fast
        self.model = model
        super().__init__(
            unk_token="<unk>", mask_token=fast.special_tokens_map.get("mask_token", "<mask>")
        )
        names = [name for name in fast.all_special_tokens if name != "<mask>"]
        mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
        self.add_tokens([*names, mask], special_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.fast.get_vocab())

    @property
    def vocab_size(self) -> int:
        return len(self.fast)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(self.model.encode(text, out_type=str))

    def _convert_token_to_id(self, token: str) -> int:
        index: int = self.model.piece_to_id(token)
        return index + 1 if index else 3

    def ids(self, text: str) -> list[int]:
        whole = self.fast("a")["input_ids"]
        letter = self.fast("a", add_special_tokens=False)["input_ids"]
        at = next(at for at in range(len(whole)) if whole[at : at + len(letter)] == letter)
        own = self(text, add_special_tokens=False)["input_ids"]
        return [*whole[:at], *own, *whole[at + len(letter) :]]
