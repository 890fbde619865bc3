"""The supervisor: starts tritonserver and the OpenAI endpoint, watches and heals them."""
