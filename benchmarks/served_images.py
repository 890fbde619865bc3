"""The overhead of serving image models: `python -m benchmarks.served_images [--device cuda]`.

ViT-B/16's shape with random weights on the real embedded Triton gets JPEG files of 500 x 375 pixels
over gRPC, 8 per request. It is compared with two systems, each alone on the machine: the engine
with pixel values (with the number of requests per call that is fastest), and the decoder (JPEG to
pixel values in all its processes). The slower of the two is the maximum that a server can reach.

Adds rows to bench-results/served_images.jsonl (one JSON object each).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import image_rivals, machine, records, served_seconds
from benchmarks.gpu.served import check_packages
from benchmarks.served_sides import Prepare, Prepared, Side, Window, client_side, engine_side

MODEL = "vit"
SIDES = (500, 375)  # of a file's image: the most common size in ImageNet
PREPROCESSING = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
REQUESTS = 8  # different ones
WARM_S = 0.5


@dataclass(frozen=True)
class Images:
    """Files in requests of `size`, with `under_way` in flight; the engine gets them decoded."""

    files: list[bytes]
    pixels: np.ndarray | None
    size: int
    under_way: int
    a_call: int

    def requests(self) -> list[dict[str, Any]]:
        begins = range(0, len(self.files), self.size)
        if self.pixels is not None:
            return [{"pixel_values": self.pixels[i : i + self.size]} for i in begins]
        return [{"images": self.files[i : i + self.size]} for i in begins]

    def tokens(self, images: int) -> list[int]:
        """Returns the counts to add up, which for images are images."""
        return [images] * (len(self.files) // images)


def decoder_side(folder: str) -> Prepare:
    from fusewire.images import ImageWorkers, read_preprocessing

    workers = ImageWorkers(read_preprocessing(folder, "vit"), apart=True)

    def prepare(case: Images) -> Prepared:
        def answer(calls: Iterable[list[bytes]]) -> None:
            waiting = None
            for call in calls:
                following = workers.start(call)  # keeps the workers busy while answers are received
                if waiting:
                    waiting()
                waiting = following
            if waiting:
                waiting()

        calls = [case.files[i : i + case.a_call] for i in range(0, len(case.files), case.a_call)]
        return Prepared(calls, case.tokens(case.a_call), answer)

    return prepare


def jpegs(count: int) -> list[bytes]:
    """Returns smooth random images with some noise, whose files are as large as those of
    photographs."""
    from PIL import Image

    rng = np.random.default_rng(0)
    files = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize(SIDES, Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(buffer := io.BytesIO(), "JPEG", quality=85)
        files.append(buffer.getvalue())
    return files


def rate(sides: list[Side], seconds: float) -> float:
    """Returns the images/s of all sides together."""
    begin = time.perf_counter() + WARM_S
    for number, side in enumerate(sides):
        side.begin(Window(begin, begin + seconds, first=number))
    return sum(side.receive() for side in sides) / seconds


def run(options: argparse.Namespace) -> Iterator[records.Row]:
    from fusewire.serving.config import Deployment, ServerSettings
    from fusewire.serving.supervisor.server import Server
    from fusewire.settings import EngineSettings

    files = jpegs(REQUESTS * options.images)
    kilobytes = round(sum(map(len, files)) / len(files) / 1e3)
    rng = np.random.default_rng(1)
    pixels = rng.standard_normal((len(files), 3, 224, 224), np.float32)
    case = Images(files, None, options.images, 1, options.images)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        image_rivals.write_vit(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
        alone: dict[str, float] = {}
        with Side("decoder", decoder_side, name) as decoder:
            decoder.prepare(replace(case, a_call=min(len(files), 8 * options.images)))
            alone["decoder"] = rate([decoder], options.seconds)
        with Side("engine", engine_side, name, EngineSettings(), options.device) as engine:
            for calls in (1, 2, 4):
                engine.prepare(replace(case, pixels=pixels, a_call=calls * options.images))
                found = rate([engine], options.seconds)
                alone["engine"] = max(alone.get("engine", 0.0), found)
        server = stack.enter_context(
            Server(
                [f"{MODEL}={folder}"],
                ServerSettings(http_port=0, grpc_port=0, metrics_port=0),
                model_settings={"task": "embed"},
                deployment=Deployment(device=options.device, instances=options.instances),
                report=print,
            )
        )
        at = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
        clients = [
            stack.enter_context(Side(f"client {number}", client_side, at, MODEL))
            for number in range(max(options.clients))
        ]
        for client in clients:
            client.prepare(replace(case, under_way=options.under_way))
        for count in options.clients:
            before = served_seconds.so_far(server, MODEL)
            began = time.perf_counter()
            served = rate(clients[:count], options.seconds)
            spent: served_seconds.Seconds = {}
            served_seconds.add_since(before, served_seconds.so_far(server, MODEL), spent)
            yield {
                "case": f"{count} clients x {options.under_way}",
                "images": options.images,
                "kilobytes": kilobytes,
                "instances": options.instances,
                "under_way": count * options.under_way,
                "engine_images_per_s": round(alone["engine"], 1),
                "decoder_images_per_s": round(alone["decoder"], 1),
                "served_images_per_s": round(served, 1),
                "served_over_slower": round(served / min(alone.values()), 3),
                **served_seconds.row(
                    spent, time.perf_counter() - began, options.images, options.instances
                ),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--images", type=int, default=8, help="of a request")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8], help="processes")
    parser.add_argument("--under-way", type=int, default=2, help="requests of a client at once")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    check_packages()
    facts = {
        "benchmark": "served_images",
        "model": "ViT-B/16",
        "system": "fusewire",
        "dtype": "float32" if options.device == "cpu" else "float16",
        **machine.facts("nvidia-pytriton", "tritonclient", "pillow"),
    }
    if options.device == "cuda":
        import torch

        facts["gpu"] = torch.cuda.get_device_name()
    for row in run(options):
        print(
            f"{row['case']}: {row['served_images_per_s']} images/s; engine alone "
            f"{row['engine_images_per_s']}, decoder alone {row['decoder_images_per_s']}: "
            f"x {row['served_over_slower']} of the slower",
            flush=True,
        )
        records.append(options.out / "served_images.jsonl", [facts | row])


if __name__ == "__main__":
    main()
