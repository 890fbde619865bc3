"""Small random models of transformers, and batches for them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from fusewire import train

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {**SMALL, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
GEMMA = {
    **LLAMA,
    "head_dim": 16,
    "query_pre_attn_scalar": 12,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 3,
}
SEQ2SEQ = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
    "scale_embedding": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
T5 = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

# Class name -> its configuration. Dropout is what `dropout` says.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertModel": ("BertConfig", SMALL),
    "BertForSequenceClassification": ("BertConfig", {**SMALL, "num_labels": 3}),
    "BertForMaskedLM": ("BertConfig", {**SMALL, "hidden_act": "relu"}),
    "BertForTokenClassification": ("BertConfig", {**SMALL, "num_labels": 5}),
    "BertForQuestionAnswering": ("BertConfig", SMALL),
    "BertForPreTraining": ("BertConfig", SMALL),
    "RobertaForSequenceClassification": ("RobertaConfig", {**SMALL, "num_labels": 3}),
    "RobertaForMaskedLM": ("RobertaConfig", SMALL),
    "XLMRobertaForMaskedLM": ("XLMRobertaConfig", SMALL),
    "ElectraForPreTraining": ("ElectraConfig", {**SMALL, "embedding_size": 16}),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        {
            "vocab_size": 61,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {
            "vocab_size": 61,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 40,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**SMALL, "rotary_pct": 0.5}),
    "LlamaForCausalLM": ("LlamaConfig", {**LLAMA, "attention_bias": True}),
    "MistralForCausalLM": ("MistralConfig", {**LLAMA, "sliding_window": 5}),
    "Qwen2ForCausalLM": ("Qwen2Config", LLAMA),
    "Qwen3ForCausalLM": ("Qwen3Config", {**LLAMA, "head_dim": 16}),
    "Gemma2ForCausalLM": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 3.0}),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", GEMMA),
    "ViTForImageClassification": ("ViTConfig", IMAGES),
    "DeiTForImageClassification": ("DeiTConfig", IMAGES),
    "BartForConditionalGeneration": ("BartConfig", SEQ2SEQ),
    "MarianMTModel": ("MarianConfig", SEQ2SEQ),
    "MBartForConditionalGeneration": ("MBartConfig", SEQ2SEQ),
    "PLBartForConditionalGeneration": ("PLBartConfig", SEQ2SEQ),
    "PegasusForConditionalGeneration": ("PegasusConfig", SEQ2SEQ),
    "BlenderbotForConditionalGeneration": ("BlenderbotConfig", SEQ2SEQ),
    "M2M100ForConditionalGeneration": ("M2M100Config", SEQ2SEQ),
    "T5ForConditionalGeneration": ("T5Config", T5),
    "MT5ForConditionalGeneration": ("MT5Config", T5),
    "UMT5ForConditionalGeneration": ("UMT5Config", T5),
}
SEQ2SEQ_MODELS = [n for n, (_, c) in CONFIGS.items() if "decoder_start_token_id" in c]
_KEYS = (
    "dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "attention_dropout",
    "activation_dropout",
    "hidden_dropout",
    "dropout_rate",
)


def config_of(name: str, dropout: float = 0.0, **more: Any) -> Any:
    kind, options = CONFIGS[name]
    config = getattr(transformers, kind)(**options | more, attn_implementation="eager")
    for key in (*NO_DROPOUT, *_KEYS):
        if hasattr(config, key):
            setattr(config, key, dropout)
    return config


def eager(name: str, dropout: float = 0.0, **more: Any) -> Any:
    """A model of transformers with random weights, the same for the same name, that trains."""
    torch.manual_seed(1)
    model = getattr(transformers, name)(config_of(name, dropout, **more))
    with torch.no_grad():
        for parameter in model.parameters():  # also biases and norms, which begin as 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for module in model.modules():
            if hasattr(module, "create_weight"):  # sinusoids, which no folder has
                module.weight.copy_(module.create_weight())
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.train()


def both(
    name: str, dropout: float = 0.0, more: dict[str, Any] | None = None, **replaced: Any
) -> tuple[Any, Any]:
    """The same model twice: transformers' own, and ours. `more`: keys of its configuration."""
    theirs = eager(name, dropout, **more or {})
    return theirs, train.replace(copy.deepcopy(theirs), **replaced)


def ragged(
    name: str, lengths: tuple[int, ...] = (7, 12, 1, 9), seed: int = 0
) -> dict[str, torch.Tensor]:
    """A padded batch with labels; of images as many. Targets of encoder-decoder models have the
    lengths in the other order."""
    torch.manual_seed(seed)
    if "Image" in name:
        pixels = torch.randn(len(lengths), 3, 24, 24)
        return {"pixel_values": pixels, "labels": torch.randint(0, 3, (len(lengths),))}
    rows, longest = len(lengths), max(lengths)
    mask = (torch.arange(longest)[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(3, 61, (rows, longest)) * mask
    batch = {"input_ids": ids, "attention_mask": mask}
    if name in SEQ2SEQ_MODELS:
        targets = torch.randint(3, 61, (rows, longest))
        return batch | {"labels": torch.where(mask.flip(0).bool(), targets, -100)}
    by_token = torch.where(mask.bool(), ids, -100)
    if name.endswith("SequenceClassification"):
        batch["labels"] = torch.randint(0, 3, (rows,))
    elif name.endswith("QuestionAnswering"):
        batch["start_positions"] = torch.zeros(rows, dtype=torch.long)
        batch["end_positions"] = torch.tensor(lengths) - 1
    elif name == "BertForPreTraining":
        batch |= {"labels": by_token, "next_sentence_label": torch.randint(0, 2, (rows,))}
    elif name == "ElectraForPreTraining":
        batch["labels"] = torch.randint(0, 2, (rows, longest))
    elif name.endswith("TokenClassification"):
        batch["labels"] = torch.where(mask.bool(), ids % 5, -100)
    elif not name.endswith("Model") or name == "GPT2LMHeadModel":
        batch["labels"] = by_token
    if name.startswith("Bert"):
        batch["token_type_ids"] = torch.randint(0, 2, (rows, longest)) * mask
    return batch


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of a model without a head: a sum over what it gives for tokens."""
    output = model(**batch)
    if getattr(output, "loss", None) is not None:
        loss: torch.Tensor = output.loss
        return loss
    hidden = output.last_hidden_state
    torch.manual_seed(9)
    weights = torch.randn(hidden.shape[-1]) * batch["attention_mask"][..., None]
    return (hidden * weights).sum() + output.pooler_output.pow(2).sum()
