"""What can go wrong in a job, and how far it reaches.

JobError            nothing goes on: the settings, the model, the output; exit 1 or 2
├── WrongSettings   ...and what was asked cannot work: exit 2
├── PlaceAway       ...until a store can be reached, or its credentials are good; of an input, one shard cannot be read
└── TooManyErrors   more rows failed than may
ShardError          one shard cannot be read; the others go on, and the job fails at its end
EngineFailed        the process that computes ended, or cannot begin
"""

import errno
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class JobError(Exception):
    """The job ends; a sentence with its remedy."""

    status = 1


class WrongSettings(JobError):
    """The job cannot be done as it was asked."""

    status = 2


class PlaceAway(JobError):
    """A store does not answer, or does not allow it: the fault of no row."""


class TooManyErrors(JobError):
    """More rows failed than may."""


class ShardError(Exception):
    """One shard cannot be read."""


def unwritten(where: object, error: OSError) -> JobError:
    """Return what an error of writing there says, and what to do about it."""
    if error.errno in _FULL:
        return JobError(f"{where} has no space left: make room there, and run the same again to go on")
    return JobError(f"{where} cannot be written: {error.strerror or error}")
