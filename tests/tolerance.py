"""Every tolerance of the test suite. Loosening one takes a sentence of reason beside it."""

import math

# fp32 hidden states and logits against transformers eager, max abs difference.
MODEL_FP32 = 1e-4

# The same request, alone and inside a batch: fp32 on the CPU is bit-equal.
BATCHED_VERSUS_ALONE = 0.0

# The same on a GPU, in fp32, where results are of the order of 1: a GEMM of another height is
# another kernel, which sums in another order. Results of a whole model differ by no more than is
# granted to each of them (`granted`), in any precision: logits of 18 have rounding errors of 1.6e-5
# in transformers itself (fp32 against fp64, the smallest ModernBERT).
GPU_BATCHED_VERSUS_ALONE = 1e-5

# An op, a layer or a 16-bit model against its reference: at most this many times the error of the
# same in torch, in the same precision on the same device and input, plus ROUNDING units in the last
# place of the largest result.
OP_VERSUS_TORCH = 2.0
ROUNDING_ULPS = 4

# Cosine and sine of equal fp32 angles: their last two bits are the library's.
COSINE = 2.5e-7

# Scores that leave a pipeline (softmax outputs, probabilities).
PIPELINE_SCORE = 1e-5

# LayerNorm of rows with mean 1e4 and deviation 0.1: the mean itself, rounded to fp32 (half a unit
# of 1e4 is 4.9e-4), is off by this much of a deviation; torch's own error is measured beside it.
LARGE_MEAN = 5e-3

# The planned peak of a workspace over the liveness lower bound.
PEAK_OVER_BOUND = 1.05

# Tokens that recorded forwards compute beyond those of the requests, over a mixed workload.
PADDING_SHARE = 0.06

# Bits of a mantissa, and the exponent below which an element type keeps no more of them.
_PRECISION = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


def ulp(value: float, dtype: str) -> float:
    """The unit in the last place of a number in an element type."""
    bits, least = _PRECISION[dtype]
    exponent = math.frexp(value)[1] - 1 if value else least
    return math.ldexp(1.0, max(exponent, least) - bits)


def granted(torch_error: float, largest: float, dtype: str) -> float:
    """The error a result may have: torch's in the same precision was `torch_error`, its largest
    element is `largest`."""
    return OP_VERSUS_TORCH * torch_error + ROUNDING_ULPS * ulp(largest, dtype)
