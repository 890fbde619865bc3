"""cuDNN's ragged attention as shipped with torch: a rival of which only single kernels can be
timed.

torch builds cuDNN's plan anew in every call, so the call cannot be captured in a graph, and the
host takes longer than the device. The profiler's times of cuDNN's kernels exclude the host, and
also the small kernels around them, which the layers of a model would share.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CALLS = 9


def attend(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Computes attention of qkv [tokens, 3, heads, head_dim]; returns [tokens, heads *
    head_dim]."""
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32).cuda()
    q, k, v = qkv.unbind(1)
    longest = max(lengths)
    found = torch.ops.aten._cudnn_attention_forward(
        q, k, v, None, offsets, offsets, longest, longest, False, 0.0, False, False
    )
    return found[0].flatten(1)


def kernels_us(inputs: list[Tensor], lengths: list[int]) -> dict[str, float]:
    """Returns the microseconds of each kernel of one call, by name. Raises RuntimeError where torch
    or cuDNN do not support the shape."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for call in range(CALLS):
            attend(inputs[call % len(inputs)], lengths)
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in trace.events():
        if "cudnn" in event.name and event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name[:120]
            found[name] = found.get(name, 0.0) + event.time_range.elapsed_us() / CALLS
    if not found:
        raise RuntimeError("cuDNN: got none of its kernels in the profile, wanted one")
    return found
