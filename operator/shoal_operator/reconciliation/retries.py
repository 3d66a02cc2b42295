"""Errors of the API server that a retry may solve."""

from dataclasses import dataclass

from shoal_operator.errors import ApiError

_MAX_RETRIES = 3
"""Reconciliations in a row after which a transient error is reported in the status."""


@dataclass(slots=True)
class Retries:
    """Reconciliations of one object in a row that a transient error ended."""

    count: int = 0

    def check(self, error: ApiError) -> None:
        """Count a transient error, and raise it until enough retries have failed; return for other errors.

        Raises:
            ApiError: the error: a retry may solve it, or the namespace is being deleted.
        """
        if error.is_deletion and error.status == 403:
            raise error
        if not error.is_transient:
            return
        self.count += 1
        if self.count < _MAX_RETRIES:
            raise error
