"""TorchServe's PredictionException, imported by handlers from this module."""

from ts.utils.util import PredictionException

__all__ = ["PredictionException"]
