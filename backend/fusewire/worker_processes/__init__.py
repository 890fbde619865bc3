"""Worker processes that handle untrusted input for a model. Such input may crash them, or take
unbounded memory and time, but harms only them. The parent calls a worker, one call at a time, with
a deadline, and replaces one that misses it or dies."""
