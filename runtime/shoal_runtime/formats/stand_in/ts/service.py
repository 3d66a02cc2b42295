"""What handlers import of the module that calls them: the error with a status."""

from ts.utils.util import PredictionException

__all__ = ["PredictionException"]
