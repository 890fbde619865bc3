"""`fusewire check`: how far a model is from transformers, or from itself in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from fusewire.cli.console import Json, Model, err, out
from fusewire.errors import counted
from fusewire.settings import names

if TYPE_CHECKING:
    from fusewire.parity import Parity

_INPUT, _QUALITY = "Input", "What passes"


def check(
    model: Model,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Default: by `architectures` in config.json."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="transformers|fp32",
            help="The reference: transformers in fp32 on the CPU, or fusewire itself in fp32, "
            "which needs neither torch nor transformers.",
        ),
    ] = "transformers",
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
    ] = "cpu",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|float16|bfloat16",
            help="auto: float32 on the CPU, float16 on a GPU; bfloat16 on the CPU: of weights.",
        ),
    ] = "auto",
    quantize: Annotated[
        str, typer.Option(metavar="none|int8|fp8", help="How the layers' matrices are stored.")
    ] = "none",
    quantize_skip: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Matrices that it leaves, as of `serve` and `import`, with commas between them.",
        ),
    ] = "",
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|fp8",
            help="How keys and values are stored, of a model that generates: fp8 on GPUs.",
        ),
    ] = "auto",
    as_json: Json = False,
    sequences: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of random sequences to compare on. Default: 8.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare on these texts instead, one a line, cut to 512 tokens: embedders by "
            "embeddings, models that continue texts by perplexity too.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare embeddings on these pairs of texts with scores (.tsv, .csv, .jsonl: "
            "sentence1, sentence2, score), and how cosines rank them.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="Largest absolute difference that passes. Default: in fp32 1e-4, or 2^-16 of the "
            "largest result if that is more; in fp16 and bf16 twice the difference of transformers "
            "from itself in fp32, plus rounding; none with one of the following, against fp32, or "
            "with weights, activations or a KV cache in fewer bits (also bfloat16 on the CPU).",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    min_cosine: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            metavar="X",
            help="Least cosine of a row (an embedding, a hidden state, logits) with the "
            "reference's.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    max_perplexity_ratio: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="Largest ratio of the perplexity on --texts to the reference's.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
    max_spearman_loss: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="How much less Spearman's correlation on --pairs may be than the reference's.",
            rich_help_panel=_QUALITY,
        ),
    ] = None,
) -> None:
    """Compare a model's results with transformers, or with its own in fp32.

    Runs both on the same random sequences of different lengths, or random images, or the texts of a
    file, and prints differences and cosines. Of a model that generates: of the logits after each
    prompt and after each of 16 greedy tokens, or at every token of given texts. Needs torch and
    transformers, save with --against fp32.

    Exit code 0: what was asked for holds, by default the tolerance; 1: it does not; 2: an error.
    """
    from fusewire.parity import Floors, parity

    with err.status("running the model twice"):
        found = parity(
            model,
            task,
            device,
            dtype,
            quantize=quantize,
            quantize_skip=names(quantize_skip),
            kv_cache_dtype=kv_cache_dtype,
            against=against,
            sequences=sequences,
            texts=texts,
            pairs=pairs,
            tolerance=tolerance,
            floors=Floors(min_cosine, max_perplexity_ratio, max_spearman_loss),
        )
    if as_json:
        out.print_json(json.dumps(found.as_dict()))
    else:
        _print(found)
    raise typer.Exit(0 if found.passed else 1)


def _print(found: Parity) -> None:
    table = Table(
        Column("result", no_wrap=True),
        "largest difference",
        "tolerance",
        "mean difference",
        "mean cosine",
        "least cosine",
        box=None,
    )
    for name, each in found.differences.items():
        allowed = found.allowed.get(name)
        table.add_row(
            name,
            f"{each.largest:.2e}",
            "-" if allowed is None else f"{allowed:.2e}",
            f"{each.mean:.2e}",
            f"{each.mean_cosine:.6f}",
            f"{each.least_cosine:.6f}",
        )
    out.print(
        f"{found.architecture}, task {found.task}: {counted(found.sequences, 'sequences')}, "
        f"{counted(found.tokens, 'tokens')}, {found.dtype} against {found.against}"
    )
    out.print(table)
    if found.greedy_tokens:
        out.print(f"greedy tokens: {found.greedy_equal} of {found.greedy_tokens} equal")
    if found.kl_divergence is not None:
        out.print(f"KL divergence: {found.kl_divergence:.2e} nats a token")
    if found.perplexity_ratio is not None:
        out.print(
            f"perplexity: {found.perplexity:.4f}, of {found.against} "
            f"{found.reference_perplexity:.4f}, ratio {found.perplexity_ratio:.6f}"
        )
    if found.spearman_loss is not None:
        out.print(
            f"Spearman with the scores: {found.spearman:.4f}, of {found.against} "
            f"{found.reference_spearman:.4f}, loss {found.spearman_loss:.6f}"
        )
    out.print(_verdict(found))


def _verdict(found: Parity) -> str:
    if found.failures:
        return "\n".join(f"DIFFERENT: {failure}" for failure in found.failures)
    if found.floors.given:
        return "as good as asked for"
    return "equal within the tolerance" if found.allowed else "measured, as no bound was given"
