"""What a request for generated text says: parameters, their checks, prompts, stop strings."""
