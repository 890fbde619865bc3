"""The GPU's benchmarks: `python -m benchmarks.gpu [encoder kernels gemm attention
attention_training memory served generation seq2seq]`.

Adds JSON rows to `--out` and prints tables and goals at the end. `summary` measures nothing: it
prints those of the existing rows. `python -m benchmarks.pages --take` brings them into the
documentation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from benchmarks.gpu import generation_workload, goals, seq2seq_workload, tables
from benchmarks.gpu.run import run
from benchmarks.gpu.workload import GRIDS, SIZES
from benchmarks.records import GPU_RESULTS

BENCHMARKS = (
    "encoder",
    "kernels",
    "gemm",
    "attention",
    "attention_training",
    "memory",
    "served",
    "generation",
    "seq2seq",
)


def main() -> int:
    options = arguments()
    if "summary" in options.benchmarks:
        print(tables.markdown(options.out))
        print(goals.text(options.out))
        return 0
    failed = []
    for name in options.benchmarks or BENCHMARKS:
        # A process of its own, so that none inherits another's memory or is affected by its crash.
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=run, args=(name, options))
        process.start()
        process.join()
        if process.exitcode:
            failed.append(name)
    if options.out.is_file():
        print(tables.markdown(options.out))
        print(goals.text(options.out))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description="The GPU's benchmarks")
    parser.add_argument("benchmarks", nargs="*", metavar="|".join((*BENCHMARKS, "summary")))
    parser.add_argument("--out", type=Path, default=GPU_RESULTS, help="the file of rows")
    parser.add_argument(
        "--no-compiled-transformers",
        action="store_true",
        help="encoder, generation: leave it out: 12 s a case",
    )
    encoder = parser.add_argument_group("encoder")
    encoder.add_argument("--grids", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    encoder.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    encoder.add_argument("--cases", nargs="+", default=[], help="only these, such as 16x512")
    encoder.add_argument(
        "--compile-all", action="store_true", help="compile the packed rival at every grid point"
    )
    encoder.add_argument("--without-own", action="store_true", help="the rivals alone")
    parts, models = generation_workload.PARTS, generation_workload.SHAPES
    generation = parser.add_argument_group("generation")
    generation.add_argument("--parts", nargs="+", choices=list(parts), default=list(parts))
    generation.add_argument(
        "--models", nargs="+", choices=list(models), default=[], help="only these"
    )
    generation.add_argument(
        "--batches", nargs="+", type=int, default=[], help="generation, seq2seq: only these"
    )
    shapes = list(seq2seq_workload.SHAPES)
    seq2seq = parser.add_argument_group("seq2seq")
    seq2seq.add_argument(
        "--seq2seq-models", nargs="+", choices=shapes, default=[], help="only these"
    )
    seq2seq.add_argument("--lengths", nargs="+", type=int, default=[], help="only these new tokens")
    seq2seq.add_argument("--beams", nargs="+", type=int, default=[], help="only so many")
    seq2seq.add_argument("--without-rivals", action="store_true", help="seq2seq: ours alone")
    options = parser.parse_args()
    unknown = [name for name in options.benchmarks if name not in (*BENCHMARKS, "summary")]
    if unknown:
        parser.error(f"benchmarks: got {', '.join(unknown)}, wanted {', '.join(BENCHMARKS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
