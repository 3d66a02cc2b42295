"""Errors of a job, by scope.

JobError                   the job ends: the settings, the model or the output; exit status 1 or 2
├── InvalidSettings        the settings cannot work: exit status 2
├── DirectoryUnavailable   a store is unreachable or rejects the credentials
└── TooManyErrors          more rows failed than allowed
ShardError                 one shard cannot be read; the others continue, and the job fails at its end
"""

import errno
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class JobError(Exception):
    """The job cannot continue. The message is a sentence with its remedy."""

    status = 1


class InvalidSettings(JobError):
    """The settings do not allow the job to run."""

    status = 2


class DirectoryUnavailable(JobError):
    """An object store is unreachable or rejects the credentials; no row is the cause."""


class TooManyErrors(JobError):
    """More rows failed than allowed."""


class ShardError(Exception):
    """A shard cannot be read; other shards are not affected."""


def unwritten(where: object, error: OSError) -> JobError:
    """Return the error for a failed write, with its remedy."""
    # A full disk or quota is the usual cause, with a remedy of its own.
    if error.errno in _FULL:
        return JobError(f"{where} has no space left. Free some, then run the same command again to resume")
    return JobError(f"{where} cannot be written: {error.strerror or error}")
