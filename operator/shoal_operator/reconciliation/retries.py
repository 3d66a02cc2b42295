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
        """Raise an error that a retry of the reconciliation may solve.

        A transient error is raised until the maximum of retries in a row is reached. The call returns for other errors.

        Raises:
            ApiError: the given error: it is transient, or the namespace is being deleted.
        """
        if error.is_deletion and error.status == 403:
            raise error
        if not error.is_transient:
            return
        self.count += 1
        if self.count < _MAX_RETRIES:
            raise error
