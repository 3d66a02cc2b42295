"""Loaders of model files: one module per format, each with a function `load(source)`."""
