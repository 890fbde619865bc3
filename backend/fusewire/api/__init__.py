"""The Python interface: lists of texts in, arrays, scores and texts out, in this process."""
