"""Every tolerance of the test suite. Loosening one takes a sentence of reason beside it."""

# fp32 hidden states and logits against transformers eager, max abs difference.
MODEL_FP32 = 1e-4

# The same request, alone and inside a batch: fp32 on the CPU is bit-equal.
BATCHED_VERSUS_ALONE = 0.0

# One op in fp32 against an fp64 reference: at most this many times the error of the same op in
# torch fp32 on the same input, plus ROUNDING units in the last place of the largest result.
OP_VERSUS_TORCH = 2.0
ROUNDING_ULPS = 4

# Scores that leave a pipeline (softmax outputs, probabilities).
PIPELINE_SCORE = 1e-5

# LayerNorm of rows with mean 1e4 and deviation 0.1: the mean itself, rounded to fp32 (half a unit
# of 1e4 is 4.9e-4), is off by this much of a deviation; torch's own error is measured beside it.
LARGE_MEAN = 5e-3

# The planned peak of a workspace over the liveness lower bound.
PEAK_OVER_BOUND = 1.05
