"""OpenAI's HTTP interface to the models of one server."""
