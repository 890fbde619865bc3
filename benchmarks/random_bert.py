"""BERT checkpoints of seeded random weights, for machines that cannot download any: they are as
fast as others of their shape. The words of their tokenizer are strings of letters."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

VOCABULARY = 30522
SHAPES: dict[str, dict[str, int]] = {
    "MiniLM-L6": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "BERT-base": {},
}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(folder: Path, shape: str) -> None:
    """Writes a Hugging Face folder. `shape`: a name of SHAPES."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=VOCABULARY, **SHAPES[shape])
    transformers.BertModel(config).eval().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


def tokenizer() -> Tokenizer:
    """Returns a tokenizer of BERT's kind; each of its words is one token."""
    words = [*_SPECIAL, *(word(number) for number in range(VOCABULARY - len(_SPECIAL)))]
    ids = {text: index for index, text in enumerate(words)}
    made = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    return made


def word(number: int) -> str:
    """Returns a word of five letters, a different one for each number below 26^5."""
    letters = ""
    for _ in range(5):
        number, place = divmod(number, len(_LETTERS))
        letters = _LETTERS[place] + letters
    return letters
