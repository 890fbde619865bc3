"""Base models of transformers whose layers can be trained here, one row each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

from fusewire.errors import CheckpointError, Unsupported
from fusewire.models import blueprint_of
from fusewire.models.blueprint import Stack
from fusewire.models.config import Config
from fusewire.models.image_parts import LayerNames, pre_norm_layers
from fusewire.models.registry import image_encoder as image_row
from fusewire.train import decoder, image_encoder, seq2seq, t5, text_encoder
from fusewire.train.arguments import refuse_autocast, refuse_traced, uncompiled
from fusewire.train.parts import Dropouts


def _image_stack(values: Mapping[str, Any]) -> Stack:
    """The stack with the parameter names of the module; those of checkpoints are older."""
    config = Config(values)
    stack = image_row(values).blueprint(config).stack
    names = LayerNames(
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        attention_output="attention.o_proj",
        attention_norm="layernorm_before",
        intermediate="mlp.fc1",
        output="mlp.fc2",
        output_norm="layernorm_after",
    )
    layers = pre_norm_layers(
        config,
        "layers",
        names,
        *config.width(),
        config.size("intermediate_size", 3072),
        config.number("layer_norm_eps", 1e-12),
        qkv_bias=config.flag("qkv_bias", True),
    )
    return replace(stack, layers=layers)


def _text_stack(task: str, values: Mapping[str, Any]) -> Stack:
    return blueprint_of(values, task).stack


def _seq2seq_stack(side: str, values: Mapping[str, Any]) -> Stack:
    """The stack of the encoder's or the decoder's module; `side`: its name in the base model."""
    if not values.get("is_encoder_decoder"):
        raise Unsupported(
            "is_encoder_decoder",
            str(values.get("is_encoder_decoder")),
            "True: a decoder with the encoder that it reads",
            "train a decoder alone with transformers itself",
        )
    if values.get(f"{side}_layerdrop"):
        raise Unsupported(
            f"{side}_layerdrop",
            str(values[f"{side}_layerdrop"]),
            "0: no layer is left out",
            "set it to 0 in the config, or train it with transformers itself",
        )
    blueprint = blueprint_of(values, "generate")
    stack: Stack = _in_module(blueprint.encoder if side == "encoder" else blueprint.stack, side)
    return stack


def _t5_stack(values: Mapping[str, Any]) -> Stack:
    """The stack of T5. Its heads scale their own input."""
    side = "decoder" if values.get("is_decoder") else "encoder"
    blueprint = blueprint_of({**values, "is_encoder_decoder": True}, "generate")
    found: Stack = _in_module(blueprint.encoder if side == "encoder" else blueprint.stack, side)
    assert found.final_norm is not None
    return replace(found, final_norm=replace(found.final_norm, scale=1.0))


def _in_module(node: Any, module: str) -> Any:
    """The same parts of a blueprint, with the names that they have in one of its modules."""
    if isinstance(node, str):
        return node.removeprefix(f"{module}.")
    if isinstance(node, tuple):
        return tuple(_in_module(each, module) for each in node)
    if is_dataclass(node) and not isinstance(node, type):
        parts = {field.name: getattr(node, field.name) for field in fields(node)}
        return replace(node, **{name: _in_module(part, module) for name, part in parts.items()})
    return node


@dataclass(frozen=True)
class Family:
    """`of`: maps config.json to the stack, with the parameter names of the base model. `forward`:
    replaces that of the base model. The other fields are the config's keys of dropout
    probabilities, empty where nothing is dropped: of attention weights, of the output of attention,
    of the output of the feed-forward's activation and of the output of the feed-forward."""

    of: Callable[[Mapping[str, Any]], Stack]
    forward: Callable[..., Any]
    attention: str
    attention_output: str
    activation: str
    feed_forward_output: str

    def stack(self, config: Any) -> Stack:
        try:
            return self.of(config.to_dict())
        except CheckpointError as error:
            raise Unsupported(
                type(config).__name__,
                f"what layers here do not compute ({error})",
                "a model that fusewire serves",
                "train it with transformers itself",
            ) from None

    @property
    def _keys(self) -> tuple[str, ...]:
        return self.attention, self.attention_output, self.activation, self.feed_forward_output

    def probabilities(self, config: Any) -> set[float]:
        """The dropout probabilities of the layers, as the config has them."""
        return {float(getattr(config, key)) for key in self._keys if key}

    def dropouts(self, config: Any) -> Dropouts:
        return Dropouts(*(float(getattr(config, key)) if key else 0.0 for key in self._keys))


_ENCODER, _DECODER = partial(_text_stack, "embed"), partial(_text_stack, "generate")
_BERT = Family(
    _ENCODER,
    text_encoder.forward,
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "",
    "hidden_dropout_prob",
)
_DISTILBERT = Family(_ENCODER, text_encoder.forward, "attention_dropout", "", "", "dropout")
_GPT2 = Family(_DECODER, decoder.gpt2, "attn_pdrop", "resid_pdrop", "", "resid_pdrop")
_LLAMA = Family(_DECODER, decoder.llama, "attention_dropout", "", "", "")
_GPT_NEOX = Family(
    _DECODER, decoder.gpt_neox, "attention_dropout", "hidden_dropout", "", "hidden_dropout"
)
_GEMMA = replace(_LLAMA, forward=decoder.gemma)
_VIT = replace(_BERT, of=_image_stack, forward=image_encoder.forward)
_SEQ2SEQ_ENCODER = Family(
    partial(_seq2seq_stack, "encoder"),
    seq2seq.encoder,
    "attention_dropout",
    "dropout",
    "activation_dropout",
    "dropout",
)
_SEQ2SEQ_DECODER = replace(
    _SEQ2SEQ_ENCODER, of=partial(_seq2seq_stack, "decoder"), forward=seq2seq.decoder
)
_SEQ2SEQ = ("Bart", "MBart", "PLBart", "Marian", "Pegasus", "Blenderbot", "M2M100")

_T5 = Family(_t5_stack, t5.forward, *("dropout_rate",) * 4)
_T5S = ("T5", "MT5", "UMT5")

# By the class of the base model, in encoder-decoder models by that of each stack.
FAMILIES: dict[str, Family] = {
    "BertModel": _BERT,
    "RobertaModel": _BERT,
    "XLMRobertaModel": _BERT,
    "CamembertModel": _BERT,
    "ElectraModel": _BERT,
    "DistilBertModel": _DISTILBERT,
    "GPT2Model": _GPT2,
    "GPTNeoXModel": _GPT_NEOX,
    "LlamaModel": _LLAMA,
    "MistralModel": _LLAMA,
    "Qwen2Model": _LLAMA,
    "Qwen3Model": _LLAMA,
    "Gemma2Model": _GEMMA,
    "Gemma3TextModel": _GEMMA,
    "ViTModel": _VIT,
    "DeiTModel": _VIT,
    **{f"{name}Encoder": _SEQ2SEQ_ENCODER for name in _SEQ2SEQ},
    **{f"{name}Decoder": _SEQ2SEQ_DECODER for name in _SEQ2SEQ},
    **{f"{name}Stack": _T5 for name in _T5S},
}

# Classes with a decoder and a head, whose `labels` tell where targets end.
LABELLED = (
    "MarianMTModel",
    *(f"{name}ForConditionalGeneration" for name in (*_SEQ2SEQ, *_T5S) if name != "Marian"),
)


class Forward:
    """Replaces the forward of a base model. Unlike a bound method it is copied and pickled with its
    module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._family = type(module).__name__

    @property
    def __signature__(self) -> inspect.Signature:
        """That of transformers: its Trainer removes from a batch what it does not find here."""
        return inspect.signature(type(self._module).forward.__get__(self._module))

    @property
    def __code__(self) -> CodeType:
        """For torch.export, which reads it to find the source of a forward before it calls it."""
        return inspect.unwrap(type(self._module).forward).__code__

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_traced(self._family)
        refuse_autocast(self._family)
        embeddings = self._module.get_input_embeddings()
        if self._module.training and hasattr(embeddings, "neftune_noise_alpha"):
            raise Unsupported(
                f"{self._family}.neftune_noise_alpha",
                str(embeddings.neftune_noise_alpha),
                "none: its noise is by the length of a row, and rows are packed",
                "leave it out, or train with transformers itself",
            )
        self._module.fusewire.modules.check()
        return FAMILIES[self._family].forward(self._module, *args, **kwargs)
