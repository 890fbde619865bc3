"""One instance of a model, inside Triton's stub process."""
