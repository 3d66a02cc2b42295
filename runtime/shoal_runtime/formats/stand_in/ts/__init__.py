"""Stands in for the part of TorchServe's package that handlers use, where that package is not installed."""

__version__ = "0.12.0"
