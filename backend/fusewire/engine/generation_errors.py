"""What a request for generation is told that ends without its answer."""

TOO_LATE = (
    "timeout: got more work than fits into this time, wanted the last token within it; "
    "allow more time, or try again later"
)

NOT_FINITE = (
    "compute: got logits that are NaN or infinite, wanted finite ones; use another dtype, or "
    "report the model"
)

FORBIDDEN = (
    "sampling_parameters",
    "constraints that forbid every possible next token",
    "at least one allowed token",
    "relax no_repeat_ngram_size, bad_words, suppress_tokens or min_new_tokens, or ask for fewer",
)
