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
