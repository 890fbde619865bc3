"""Random encoder-decoders without a download: transformers' on the device, and their folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu.generation_models import Place, tokenizer_folder
from benchmarks.gpu.seq2seq_workload import Shape

_CLASSES = {
    "marian": (transformers.MarianConfig, transformers.MarianMTModel),
    "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
}
# Large enough that texts change from token to token and that their scores differ by more than
# rounding.
SPREAD = 0.03


def transformers_model(shape: Shape, place: Place, folder: Path) -> Any:
    """Returns a model in the dtype of `place`, and saves the same model in `folder`."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    configuration, model_class = _CLASSES[shape.family]
    more = {} if shape.family == "t5" else {"init_std": SPREAD}
    torch.manual_seed(0)
    with torch.device(place.device):
        model = model_class(configuration(**shape.config, **more))
    model = model.to(place.torch_dtype).eval()
    ends = {name: shape.config[name] for name in ("pad_token_id", "decoder_start_token_id")}
    model.generation_config = transformers.GenerationConfig(**ends)  # no text ends by itself
    tokenizer_folder(folder, shape.vocabulary)
    model.save_pretrained(folder)
    return model


def translated(model: Any, sources: Tensor, beams: int, new: int) -> Tensor:
    """Returns the output [sources, new] of `generate` with its defaults: a dynamic cache, eager
    kernels."""
    found = model.generate(sources, num_beams=beams, max_new_tokens=new, do_sample=False)
    return found[:, 1:]


@torch.no_grad()
def log_probs(model: Any, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Returns the log-probabilities of a target, float64 [tokens], by teacher forcing."""
    start = model.config.decoder_start_token_id
    device = next(model.parameters()).device
    ids = torch.tensor([source], device=device)
    given = torch.tensor([[start, *target[:-1]]], device=device)
    logits = model(input_ids=ids, decoder_input_ids=given).logits[0]
    rows = logits.double().log_softmax(-1)
    return rows.gather(1, torch.tensor(target, device=device)[:, None])[:, 0].cpu()
