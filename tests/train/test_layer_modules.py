"""Modules whose forward kernels took are what they were at `replace`, or the model refuses."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewire import train
from fusewire.errors import Unsupported
from torch import nn

from tests.train.tiny_models import CONFIGS, both, eager, loss_of, ragged

NAME = "BertForSequenceClassification"


class Wrapped(nn.Module):
    """As LoRA wraps a projection."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.base(x)


def wrap(model: Any) -> None:
    attention = model.bert.encoder.layer[0].attention.self
    attention.query = Wrapped(attention.query)


def exchange(model: Any) -> None:
    model.bert.encoder.layer[0].intermediate.dense = nn.Linear(32, 48)


def shorten(model: Any) -> None:
    model.bert.encoder.layer = model.bert.encoder.layer[:1]


def another_encoder(model: Any) -> None:
    model.bert.encoder = copy.deepcopy(model.bert.encoder)


def hook(model: Any) -> None:
    model.bert.encoder.layer[1].register_forward_hook(lambda *_: None)


def hook_before(model: Any) -> None:
    model.bert.encoder.layer[1].output.register_forward_pre_hook(lambda *_: None)


def hook_backward(model: Any) -> None:
    model.bert.encoder.layer[1].register_full_backward_hook(lambda *_: None)


def forward(model: Any) -> None:
    model.bert.encoder.layer[1].forward = lambda x, *_, **__: x


def drop_nothing(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


SURGERY = {
    wrap: "encoder.layer.0.attention.self",
    exchange: "encoder.layer.0.intermediate",
    shorten: "encoder",
    another_encoder: "encoder: got another module",
    hook: "encoder.layer.1: got a hook",
    hook_before: "encoder.layer.1.output: got a hook",
    hook_backward: "encoder.layer.1: got a hook",
    forward: "encoder.layer.1: got a forward of its own",
    drop_nothing: "dropout",
}


@pytest.mark.parametrize("surgery", SURGERY, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_what_replaced_layers_would_ignore_is_refused(
    surgery: Callable[[Any], None], copied: Callable[[Any], Any]
) -> None:
    _, ours = both(NAME, dropout=0.1)
    if copied is not copy.copy:
        ours = copied(ours)
    loss_of(ours, ragged(NAME)).backward()
    surgery(ours)
    with pytest.raises(Unsupported, match=rf"BertModel\.{SURGERY[surgery]}.*transformers itself"):
        ours(**ragged(NAME))


@pytest.mark.parametrize(
    "surgery", sorted(SURGERY.keys() - {exchange, another_encoder}, key=lambda f: f.__name__)
)
def test_it_is_refused_before_replace_too(surgery: Callable[[Any], None]) -> None:
    model = eager(NAME, dropout=0.1)
    surgery(model)
    with pytest.raises(Unsupported, match=r"BertModel\..*transformers itself"):
        train.replace(model)


def test_layers_that_share_their_parameters() -> None:
    model = eager(NAME)
    model.bert.encoder.layer[2] = model.bert.encoder.layer[0]
    owner = r"got the parameter of encoder\.layer\.0\.attention"
    with pytest.raises(Unsupported, match=rf"encoder\.layer\.2\.attention.*{owner}.*transformers"):
        train.replace(model)


def test_layers_that_the_config_does_not_have() -> None:
    model = eager(NAME)
    model.config.num_hidden_layers = 1
    with pytest.raises(Unsupported, match=r"encoder\.layer\.1\..*got a parameter, wanted none"):
        train.replace(model)


def test_attention_of_decoders_has_its_probability_itself() -> None:
    _, ours = both("LlamaForCausalLM", dropout=0.1)
    ours.model.layers[1].self_attn.attention_dropout = 0.0
    with pytest.raises(Unsupported, match=r"attention_dropout\): got 0.0, wanted 0.1"):
        ours(**ragged("LlamaForCausalLM"))


def test_layers_in_eval_drop_nothing() -> None:
    _, ours = both(NAME, dropout=0.5)
    batch = ragged(NAME)  # which seeds torch
    for module in (ours.bert.encoder, ours.bert.embeddings, ours.dropout):
        module.eval()
    assert loss_of(ours, batch) == loss_of(ours, batch)
    ours.bert.encoder.train()
    assert loss_of(ours, batch) != loss_of(ours, batch)
    ours.bert.encoder.layer[0].eval()
    with pytest.raises(Unsupported, match=r"some in train\(\) and some in eval\(\)"):
        ours(**batch)


def test_hooks_of_the_model_and_its_head_are_called() -> None:
    _, ours = both(NAME)
    called = []
    for module in (ours, ours.bert, ours.bert.embeddings, ours.classifier):
        module.register_forward_hook(lambda *_: called.append(1))
    ours(**ragged(NAME))
    assert len(called) == 4


def test_hidden_states_taken_before_replace_leave_no_trace() -> None:
    model = eager("LlamaForCausalLM")
    model(input_ids=torch.ones(1, 3, dtype=torch.long), output_hidden_states=True)
    train.replace(model)(input_ids=torch.ones(1, 3, dtype=torch.long))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_check_takes_microseconds(name: str) -> None:
    _, ours = both(name)
    trained = (module.fusewire for module in ours.modules() if hasattr(module, "fusewire"))
    modules = next(trained).modules

    def once() -> float:
        begin = time.thread_time()
        modules.check()
        _ = modules.training
        return time.thread_time() - begin

    layers = ours.config.num_hidden_layers
    assert min(once() for _ in range(50)) < 40e-6 * layers
