"""The overhead of serving: `python -m benchmarks.served`.

MiniLM-L6 on the real embedded Triton with requests over gRPC from a client in its own process,
compared with the engine alone (`EncoderEngine.answer`, in its own process) on the same requests.
The two take turns. On few cores the client and the server's own work compete with the kernels; the
CPU seconds by part are printed with each ratio.

Cases: requests of 32 (2 in flight), and requests of one sentence (32 in flight; the engine gets
them in batches of 32), each as texts and as ids; lengths of 5 to 128 tokens, and sentences of 8 to
40 tokens.

Writes bench-results/served.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from statistics import median
from typing import Any

from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.supervisor.server import Server
from fusewire.settings import EngineSettings

from benchmarks import arena, machine, records, served_seconds
from benchmarks.encoder import minilm_folder
from benchmarks.machine import DISTURBED
from benchmarks.served_requests import Case, Texts
from benchmarks.served_sides import Side, client_side, engine_side

MODEL = "minilm"
# Requests in flight, and the goal as a share of the engine's own tokens/s.
KINDS = {"batch": (2, 0.9), "single": (32, 0.8)}
LENGTHS = {"mixed": (5, 128), "sentences": (8, 40)}
BATCH = 32


def cases_of(folder: Path, batches: int) -> list[Case]:
    """Returns every kind of request with every range of lengths, as texts and as ids."""
    texts = Texts(folder)
    cases = []
    for kind, (under_way, _) in KINDS.items():
        for lengths, (least, most) in LENGTHS.items():
            made = texts.some(batches * BATCH, least, most)
            size = BATCH if kind == "batch" else 1
            for form in ("texts", "ids"):
                name = f"{kind} {lengths} {form}"
                cases.append(Case(name, *made, form == "ids", size, under_way, BATCH))
    return cases


def measure(case: Case, engine: Side, client: Side, server: Server, rounds: int) -> dict[str, Any]:
    """Returns the tokens/s of both, and shares of the served wall time."""
    tokens = sum(len(ids) for ids in case.ids)
    seconds: dict[Side, list[float]] = {engine: [], client: []}
    spent: dict[str, float] = {"cpu_client": 0.0, "cpu_engine": 0.0}
    engine.prepare(case)
    client.prepare(case)
    pids = [engine.pid, client.pid, server.process.pid, *(s.pid for s in server.process.stubs())]
    watch = machine.Watch(*pids)
    for turn in range(rounds):
        for side in ((engine, client), (client, engine))[turn % 2]:
            before = served_seconds.so_far(server, MODEL)
            wall, cpu = side.run()
            seconds[side].append(wall)
            spent[f"cpu_{side.name}"] += cpu
            if side is client:
                served_seconds.add_since(before, served_seconds.so_far(server, MODEL), spent)
    disturbed = watch.disturbed()
    own, served = (tokens / median(seconds[side]) for side in (engine, client))
    return {
        "case": case.name,
        "tokens": tokens,
        "requests": len(case.texts) // case.size,
        "under_way": case.under_way,
        "engine_tokens_per_s": round(own, 1),
        "served_tokens_per_s": round(served, 1),
        "served_over_engine": round(served / own, 3),
        # Neighbouring turns had the same noise.
        "served_over_engine_by_turn": [
            round(e / c, 3) for e, c in zip(seconds[engine], seconds[client], strict=True)
        ],
        "goal": KINDS[case.name.split()[0]][1],
        **served_seconds.row(spent, sum(seconds[client]), case.size),
        "cpu_engine_share": round(spent["cpu_engine"] / sum(seconds[engine]), 3),
        "disturbed": disturbed,
    }


def report(row: dict[str, Any]) -> str:
    verdict = "reached" if row["served_over_engine"] >= row["goal"] else "missed"
    return (
        f"{row['case']}: served {row['served_tokens_per_s']:.0f} of the engine's "
        f"{row['engine_tokens_per_s']:.0f} tokens/s = {row['served_over_engine']:.1%}, goal "
        f"{row['goal']:.0%} ({verdict}); turns "
        f"{', '.join(f'{r:.2f}' for r in row['served_over_engine_by_turn'])}\n"
        f"    a request: queue {row['queue_ms']} ms, input {row['compute_input_ms']}, infer "
        f"{row['compute_infer_ms']}, output {row['compute_output_ms']}; "
        f"{row['sequences_per_execution']} sequences an execution\n"
        f"    of the wall time: tokenize {row['tokenize_share']:.1%}, compute "
        f"{row['compute_share']:.1%}; cores busy: client {row['cpu_client_share']:.2f}, Triton "
        f"{row['cpu_triton_share']:.2f}, backend {row['cpu_backend_share']:.2f}, engine alone "
        f"{row['cpu_engine_share']:.2f}; others took {row['disturbed']:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side")
    parser.add_argument("--batches", type=int, default=8, help="of 32 texts, in a turn")
    parser.add_argument("--cases", default="", help="only those whose name holds this")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    cpus = arena.pin(options.threads)
    folder = minilm_folder()
    cases = [case for case in cases_of(folder, options.batches) if options.cases in case.name]
    facts = machine.facts("fusewire", "fusewire-client", "nvidia-pytriton", "tritonclient")
    print(f"{facts['cpu']}, cpus {cpus}, {options.threads} threads, fp32")
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    rows = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            Server(
                [f"{MODEL}={folder}"],
                settings,
                model_settings={"threads": options.threads},
                deployment=Deployment(device="cpu"),
                report=print,
            )
        )
        at = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
        own = EngineSettings(threads=options.threads)
        engine = stack.enter_context(Side("engine", engine_side, str(folder), own, "cpu"))
        client = stack.enter_context(Side("client", client_side, at, MODEL))
        for case in cases:
            row = measure(case, engine, client, server, options.rounds)
            load = machine.facts()["load_average"]
            rows.append(
                {**facts, "benchmark": "served", "model": "MiniLM-L6", "threads": options.threads}
                | {"dtype": "float32", **row, "load_average": load}
            )
            print(report(row) + f", load average {load}", flush=True)
            records.append(options.out / "served.jsonl", rows[-1:])
    worst = max(row["disturbed"] for row in rows)
    if worst > DISTURBED:
        print(f"others took up to {worst:.0%} of the cores' time: run it again on a quiet machine")


if __name__ == "__main__":
    main()
