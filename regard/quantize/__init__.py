"""Weights in fewer bits, on a CPU."""
