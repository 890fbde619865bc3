"""The Python interface: lists of texts in, arrays, scores and texts out, in the caller's
process."""
