"""Attacks on a real `fusewire serve`, replayed: `python -m tests.attacks [NAME …] [--times N]`.

What runs is the fusewire of PYTHONPATH. Everything is on loopback, and a service that takes too
much memory is ended. A witness sends normal requests over every entrance all the while.
"""
