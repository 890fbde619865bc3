"""Processes that do for a model what may harm only them: what they read is not trusted, and may
crash, or take memory and time that nothing else can bound. Their owner calls them, one call at a
time, with a deadline; a worker that is late or dies is replaced.
"""
