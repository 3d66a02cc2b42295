"""Replacement for the part of TorchServe's package `ts` that handlers use."""

__version__ = "0.12.0"
