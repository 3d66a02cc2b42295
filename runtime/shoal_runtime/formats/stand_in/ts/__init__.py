"""The part of TorchServe's package that handlers use, for installations without that package."""

__version__ = "0.12.0"
