"""The ops cast, gradient_norm, adam_factors and adam."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal


class Step(NamedTuple):
    lengths: tuple[int, ...]  # lengths of the segments
    step: int = 1
    decoupled: bool = True
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    gradient_scale: float = 1.0
    shadow: bool = True


STEPS = [
    Step((1,)),
    Step((0, 7, 0, 33, 1, 0)),
    Step((20000, 5, 16384, 40001), step=3, shadow=False),
    Step((20000, 5, 16384, 40001), step=3, decoupled=False, gradient_scale=0.125),
    Step((100, 200), step=100_000, beta1=0.0, beta2=0.98, eps=1e-3),
]
LARGE_STEP = Step((1_000_000, 5, 1000, 70_000, 3), step=9)
NORMS = [0, 1, 7, 33, 16384, 16385, 100_003]
PARTS = (1, 5)


def make_norm(rng: np.random.Generator, count: int) -> Arrays:
    return {"gradients": normal(rng, count) / 10}


def norm(o: Operands, a: Arrays, count: int) -> np.ndarray:
    """The sums over each number of parts."""
    found = []
    for parts in PARTS:
        out = o.fp32(np.full((parts, 2), np.nan, np.float32))
        k.gradient_norm(out, o.fp32(a["gradients"]), o.place.stream)
        found.append(o.place.numpy(out).sum(0))
    return np.stack(found)


def norm_of(t: Tensors, count: int) -> torch.Tensor:
    gradients = t["gradients"]
    sums = torch.stack([(gradients**2).sum(), (~gradients.isfinite()).sum().to(gradients)])
    return sums.expand(len(PARTS), 2)


class Factors(NamedTuple):
    """Runs of `members` parameters each."""

    members: tuple[int, ...]
    steps: tuple[int, ...]  # the steps that the parameters of each run have taken
    parts: int = 1
    max_norm: float = math.inf
    scaled: bool = False
    beta1: float = 0.9
    beta2: float = 0.999


FACTORS = [
    Factors((1,), (0,)),
    Factors((3, 1, 500), (0, 7, 60_000), parts=3, max_norm=0.5, scaled=True),
    Factors((1,) * 300, tuple(range(300)), parts=300, max_norm=1e6, beta1=0.0, beta2=0.98),
]


def make_factors(rng: np.random.Generator, factors: Factors) -> Arrays:
    counts = np.repeat(factors.steps, factors.members).astype(np.float32)
    return {
        "sums": np.stack([rng.uniform(0.1, 2.0, factors.parts), np.zeros(factors.parts)], 1).astype(
            np.float32
        ),
        "steps": counts,
        "scale": np.float32([0.5]),
    }


def factors_made(o: Operands, a: Arrays, factors: Factors) -> np.ndarray:
    """Returns the factors of all runs, the norm, the number of skipped steps, and the steps."""
    runs = len(factors.members)
    out = o.fp32(np.full((runs, 4), np.nan, np.float32))
    norm, skipped = o.fp32(np.float32([np.nan])), o.fp32(np.float32([2]))
    steps = o.fp32(a["steps"].copy())
    firsts = o.int64(np.cumsum([0, *factors.members])[:-1])
    with np.errstate(divide="ignore"):
        logs = np.log([(factors.beta1, factors.beta2)] * runs).astype(np.float32)
    k.adam_factors(
        out, norm, skipped, steps, o.fp32(a["sums"]), firsts, o.fp32(logs), factors.max_norm,
        o.fp32(a["scale"]) if factors.scaled else None, o.place.stream,
    )  # fmt: skip
    return np.concatenate([o.place.numpy(each).ravel() for each in (out, norm, skipped, steps)])


def factors_of_torch(t: Tensors, factors: Factors) -> torch.Tensor:
    unscale = 1 / t["scale"] if factors.scaled else torch.ones_like(t["scale"])
    norm = t["sums"][:, 0].sum().sqrt() * unscale
    clip = (factors.max_norm / (norm + 1e-6)).clamp(max=1.0)
    taken = torch.tensor(factors.steps).to(norm) + 1
    rows = [
        (clip * unscale).expand(len(taken)),
        1 / (1 - factors.beta1**taken),
        (1 - factors.beta2**taken).rsqrt(),
        taken,
    ]
    return torch.cat(
        [torch.stack(rows, 1).flatten(), norm, torch.full_like(norm, 2), t["steps"] + 1]
    )


def make_step(rng: np.random.Generator, step: Step) -> Arrays:
    count, segments = sum(step.lengths), len(step.lengths)
    return {
        **{name: normal(rng, count) for name in ("parameters", "gradients", "exp_avg")},
        "exp_avg_sq": normal(rng, count) ** 2,
        "rates": rng.uniform(0.01, 0.1, segments).astype(np.float32),
        "decays": rng.uniform(0.0, 0.5, segments).astype(np.float32),
    }


def stepped(o: Operands, a: Arrays, step: Step) -> np.ndarray:
    """Returns [3, n]: parameters, exp_avg and exp_avg_sq."""
    gradients = o.fp32(a["gradients"])
    parameters, *state = (o.fp32(a[n].copy()) for n in ("parameters", "exp_avg", "exp_avg_sq"))
    shadow = o.floats(np.full_like(a["parameters"], np.nan)) if step.shadow else None
    segments = o.int64(np.cumsum([0, *step.lengths]))
    rates, decays = o.fp32(a["rates"]), o.fp32(a["decays"])
    factors = o.fp32(factors_of(step))
    k.adam(
        parameters, gradients, *state, segments, rates, decays, *step[3:6], factors,
        step.decoupled, shadow, 0, o.place.stream,
    )  # fmt: skip
    if shadow:
        np.testing.assert_array_equal(o.place.numpy(shadow), casted(o, o.place.numpy(parameters)))
    return np.stack([o.place.numpy(each).copy() for each in (parameters, *state)])


def factors_of(step: Step) -> np.ndarray:
    rest = [1 - beta**step.step for beta in (step.beta1, step.beta2)]
    return np.float32([step.gradient_scale, 1 / rest[0], rest[1] ** -0.5, step.step])


def casted(o: Operands, x: np.ndarray) -> np.ndarray:
    out = o.floats(np.full_like(x, np.nan))
    k.cast(out, o.fp32(x), o.place.stream)
    return o.place.numpy(out).copy()


def torch_step(t: Tensors, step: Step) -> torch.Tensor:
    """Runs the step of torch's optimizer, with each segment as its own parameter group."""
    parameters, gradients, *state = (
        torch.split(t[name], step.lengths)
        for name in ("parameters", "gradients", "exp_avg", "exp_avg_sq")
    )
    leaves = [part.clone().requires_grad_() for part in parameters]
    kind = torch.optim.AdamW if step.decoupled else torch.optim.Adam
    optimizer = kind(
        [
            {"params": [leaf], "lr": float(rate), "weight_decay": float(decay)}
            for leaf, rate, decay in zip(leaves, t["rates"], t["decays"], strict=True)
        ],
        betas=(step.beta1, step.beta2),
        eps=step.eps,
        foreach=False,
    )
    for leaf, gradient, average, square in zip(leaves, gradients, *state, strict=True):
        leaf.grad = gradient * step.gradient_scale
        optimizer.state[leaf] = {
            "step": torch.tensor(step.step - 1.0),
            "exp_avg": average.clone(),
            "exp_avg_sq": square.clone(),
        }
    optimizer.step()
    states = [optimizer.state[leaf] for leaf in leaves]
    rows = [leaves, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]]
    return torch.stack([torch.cat(parts).detach() for parts in rows])


CASES = {
    "cast": Case(
        NORMS,
        lambda rng, count: {"x": normal(rng, count)},
        lambda o, a, _: casted(o, a["x"]),
        lambda t, _: t["x"].clone(),
        fp32=("x",),
        training=True,
    ),
    "gradient_norm": Case(NORMS, make_norm, norm, norm_of, training=True, gpu_shapes=(3_000_003,)),
    "adam_factors": Case(
        FACTORS,
        make_factors,
        factors_made,
        factors_of_torch,
        fp32=("sums", "steps", "scale"),
        training=True,
    ),
    "adam": Case(
        STEPS,
        make_step,
        stepped,
        torch_step,
        fp32=("rates", "decays"),
        training=True,
        gpu_shapes=(LARGE_STEP,),
    ),
}
