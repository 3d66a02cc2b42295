"""Shoal on a GPU beside loops without a server: ``python -m benchmarks.gpu``."""
