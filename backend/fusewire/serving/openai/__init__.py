"""OpenAI's HTTP interface in front of the models of one server."""
