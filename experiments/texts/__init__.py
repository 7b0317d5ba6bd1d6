"""Texts made by rules: the built-in ones, which `python -m experiments.texts` writes, and reviews."""
