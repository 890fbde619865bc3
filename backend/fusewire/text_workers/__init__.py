"""Processes that render chat templates and tokenise, so that a model folder can harm only them.

Templates and tokenizers of a folder are not trusted: a template, or a regular expression of a
pre-tokenizer, can compute for days in C code that nothing can interrupt. So each model has a worker
with limits on memory and CPU time, and a deadline for each call; one that is late is killed and
started anew.
"""
