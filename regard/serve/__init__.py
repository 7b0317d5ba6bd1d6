"""Serve models over HTTP: the page of one model, or an API for programs."""
