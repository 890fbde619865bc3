"""Serving: configuration, repository entries, the server process and its watchdog."""
