"""Small SentencePiece models, trained by the sentencepiece package, which is the reference."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

from tests.reference import SENTENCES

TEXTS = [
    *SENTENCES,
    "日本語のテキストを、小さな断片に分けます。",
    "Привет, мир! Это просто проверка.",
    "한국어 문장도 조각으로 나눕니다.",
    "हिन्दी में एक छोटा वाक्य।",
    "مرحبا بالعالم، هذا اختبار",
    "Tiếng Việt có nhiều dấu thanh.",
    "tabs\tand  double  spaces — and “quotes” ½ ﬁ",
]
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@cache
def trained(**options: Any) -> bytes:
    """Returns a model file; the same bytes for the same options."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3),
        model_writer=written,
        minloglevel=2,
        hard_vocab_limit=False,
        num_threads=1,
        **{"vocab_size": 900, "character_coverage": 0.99} | options,
    )
    return written.getvalue()


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def t5_folder(folder: Path, model: bytes | None = None, **config: Any) -> Path:
    """Writes the tokenizer's files of a T5 folder from before tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model or trained(**T5_IDS))
    values = {"tokenizer_class": "T5Tokenizer", "model_max_length": 64} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder
