"""The error with a status, which handlers import from this module."""

from ts.utils.util import PredictionException

__all__ = ["PredictionException"]
