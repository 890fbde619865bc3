"""Processes that render chat templates and tokenise, so that a model folder can harm only them.

A folder's templates and tokenizers are not trusted: a template, or a regular expression of a
pre-tokenizer, can compute for days in C code that cannot be interrupted. So each model has a worker
with limits on memory and CPU time, and a deadline for each call. A worker that misses it is killed
and restarted.
"""
