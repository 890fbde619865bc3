"""From requests to answers: packing, micro-batches, the encoder engine."""
