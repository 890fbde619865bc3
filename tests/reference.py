"""Small random Hugging Face checkpoints with real tokenizers: the reference of tests.

`tiny_checkpoint` writes a folder that transformers itself can open (config.json, model.safetensors,
tokenizer.json, tokenizer_config.json) and returns the transformers model, so a test has both sides:
the folder for fusewire and the model for the right answer.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing

# model_type -> (transformers class prefix, tokenizer family)
ARCHITECTURES = {
    "bert": ("Bert", "wordpiece"),
    "roberta": ("Roberta", "byte_bpe"),
    "xlm-roberta": ("XLMRoberta", "unigram"),
    "camembert": ("Camembert", "unigram"),
    "distilbert": ("DistilBert", "wordpiece"),
    "albert": ("Albert", "albert"),
    "electra": ("Electra", "wordpiece"),
    "mpnet": ("MPNet", "mpnet"),
    "modernbert": ("ModernBert", "modernbert"),
}

TASK_CLASSES = {
    "embed": "Model",
    "hidden": "Model",
    "classify": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
    "fill": "ForMaskedLM",
}

# family -> special tokens in vocabulary order; the mask is the last of them.
SPECIALS = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "modernbert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "byte_bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "unigram": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "mpnet": ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"),
}

# Families whose tokenizers return token_type_ids for the model.
TYPED = {"bert", "albert", "electra"}

SENTENCES = [
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Paris is the capital of France, and Berlin is the capital of Germany.",
    "My name is Clara Schumann and I live in Leipzig with eight children.",
    "Angela Merkel met Barack Obama in Hannover on 24 April 2016.",
    "The film was wonderful: the best two hours I have spent this year!",
    "A terrible, boring film; nobody should pay 12.50 euros to see it.",
    "Where was the treaty signed? It was signed in Utrecht in 1713.",
    "Packing ragged sentences wastes no time on padding tokens.",
    "L'été dernier, nous avons mangé des crêpes à Saint-Malo.",
    "Die Straßen von München waren nach dem Sturm völlig leer.",
    "She sells sea shells by the sea shore, he sells them at the store.",
    "Numbers such as 3, 14, 159 and 2653 should be split into pieces.",
    "How do I reset my password? Click on 'forgot password' and wait for the mail.",
    "Water boils at one hundred degrees; ice melts at zero.",
    "New York City has more than eight million people living in five boroughs.",
    "Das Wasser ist kalt, aber die Sonne scheint warm auf den See.",
]


def _pieces(tokenizer: Tokenizer, continuing_prefix: str, most: int) -> dict[str, float]:
    """Returns the characters of SENTENCES and their most frequent merges, each with its share of
    the text.

    The WordPiece and unigram trainers of tokenizers break ties by hash order, which gives another
    vocabulary in each process, and with it other lengths, other windows and other scores.
    """
    words: list[list[str]] = []
    for sentence in SENTENCES:
        text = tokenizer.normalizer.normalize_str(sentence)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            words.append([word[0], *(continuing_prefix + letter for letter in word[1:])])
    counts = Counter(piece for word in words for piece in word)
    found = sorted(counts)
    while len(found) < most:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = left + right.removeprefix(continuing_prefix)
        if merged not in counts:
            found.append(merged)
        counts[merged] += pairs[left, right]
        for word in words:
            for at in range(len(word) - 2, -1, -1):
                if word[at : at + 2] == [left, right]:
                    word[at : at + 2] = [merged]
    total = sum(counts.values())
    return {piece: counts[piece] / total for piece in found[:most]}


def tiny_tokenizer(family: str, vocabulary: int = 320) -> Tokenizer:
    """Returns a real fast tokenizer of the family, made from SENTENCES: normaliser, pieces,
    template."""
    specials = [
        AddedToken(token, special=True, lstrip=(index == 4 and family != "wordpiece"))
        for index, token in enumerate(SPECIALS[family])
    ]
    if family in ("wordpiece", "mpnet"):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        pieces = [*SPECIALS[family], *_pieces(tokenizer, "##", vocabulary - len(specials))]
        tokenizer.model = models.WordPiece(
            {piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"
        )
    elif family in ("byte_bpe", "modernbert"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary + 80,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(SENTENCES, trainer)
    else:
        tokenizer = Tokenizer(models.Unigram())
        if family == "albert":
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
            )
        else:
            tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        scores = [(token, 0.0) for token in SPECIALS[family]]
        found = _pieces(tokenizer, "", vocabulary - len(scores))
        scores += [(piece, math.log(weight)) for piece, weight in found.items()]
        tokenizer.model = models.Unigram(scores, unk_id=SPECIALS[family].index("<unk>"))
    tokenizer.add_special_tokens(specials)
    first, last = _ends(family)
    pair = f"{first}:0 $A:0 {last}:0 $B:1 {last}:1"
    if first == "<s>":  # RoBERTa and related models put two separators between a pair
        pair = f"{first}:0 $A:0 {last}:0 {last}:0 $B:0 {last}:0"
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=pair,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    return tokenizer


def tiny_checkpoint(
    folder: Path | str, architecture: str, task: str = "embed", **sizes: Any
) -> transformers.PreTrainedModel:
    """Writes a random checkpoint of `architecture` (a model_type) for `task` into `folder`.

    `sizes` are config.json keys under their BERT names (hidden_size, num_attention_heads,
    num_hidden_layers, intermediate_size, vocab_size, num_labels, …; any other key is passed on to
    the configuration), and two of ours: `max_length`, the longest usable sequence (default 64),
    and `seed` (default 0). Returns the transformers model: fp32, eager attention, eval mode.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    prefix, family = ARCHITECTURES[architecture]
    seed = sizes.pop("seed", 0)
    max_length = sizes.pop("max_length", 64)
    tokenizer = tiny_tokenizer(family)
    config = _config(architecture, family, tokenizer, max_length, sizes)
    torch.manual_seed(seed)
    model_class = getattr(transformers, prefix + TASK_CLASSES[task])
    model = model_class._from_config(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    save_tokenizer(folder, architecture, tokenizer, max_length)
    return model


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Gives every parameter a value that matters.

    Fresh transformers weights (std 0.02, zero biases, unit norms) hide most mistakes: attention is
    uniform, a forgotten bias or norm weight changes nothing.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, device=device)
            if id(parameter) in tables:
                parameter.copy_(noise if "relative" in name else noise / 2)
            elif parameter.dim() > 1:
                parameter.copy_(noise * 1.2 / parameter.shape[1] ** 0.5)
            elif name.endswith("weight"):  # weights of norms
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(0.2 * noise)


def save_tokenizer(folder: Path, architecture: str, tokenizer: Tokenizer, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json for `AutoTokenizer`."""
    family = ARCHITECTURES[architecture][1]
    pad, unknown, first, last, mask = _roles(family)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if architecture not in TYPED:
        names.remove("token_type_ids")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        cls_token=first,
        sep_token=last,
        mask_token=mask,
        model_max_length=max_length,
        model_input_names=names,
    ).save_pretrained(folder)


def edit_config(folder: Path | str, **changes: Any) -> None:
    """Rewrites keys of the folder's config.json; a key set to `...` is removed."""
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def _config(
    architecture: str, family: str, tokenizer: Tokenizer, max_length: int, sizes: dict[str, Any]
) -> transformers.PretrainedConfig:
    pad, _, first, last, _ = (tokenizer.token_to_id(token) for token in _roles(family))
    values: dict[str, Any] = {
        # A vocabulary larger than the tokenizer's, as in published checkpoints; odd on purpose.
        "vocab_size": (tokenizer.get_vocab_size() + 7) | 1,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "max_position_embeddings": max_length,
        "pad_token_id": pad,
        "bos_token_id": first,
        "eos_token_id": last,
        "num_labels": 2,
    }
    if architecture in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        values["max_position_embeddings"] = max_length + pad + 1  # positions start after padding's
    if architecture in ("roberta", "xlm-roberta", "camembert"):
        values["type_vocab_size"] = 1
    if architecture in ("albert", "electra"):
        values["embedding_size"] = 24
    if architecture == "modernbert":
        values |= {"cls_token_id": first, "sep_token_id": last, "local_attention": 16}
    if "id2label" in sizes:
        del values["num_labels"]
    values |= sizes
    if architecture == "distilbert":
        renamed = {
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        }
        values = {renamed.get(key, key): value for key, value in values.items()}
    return transformers.AutoConfig.for_model(architecture, **values)


def _ends(family: str) -> tuple[str, str]:
    return ("<s>", "</s>") if SPECIALS[family][0] == "<s>" else ("[CLS]", "[SEP]")


def _roles(family: str) -> tuple[str, str, str, str, str]:
    """Returns the (pad, unknown, first, last, mask) tokens of the family."""
    specials = SPECIALS[family]
    if specials[0] == "<s>":
        return specials[1], specials[3], specials[0], specials[2], specials[4]
    return specials  # type: ignore[return-value]
