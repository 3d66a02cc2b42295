"""What can go wrong in a job, and how far it reaches.

JobError            nothing goes on: the settings, the model, the output; exit 1 or 2
├── WrongSettings   ...and what was asked cannot work: exit 2
└── TooManyErrors   more rows failed than may
ShardError          one shard cannot be read; the others go on, and the job fails at its end
EngineFailed        the process that computes ended, or cannot begin
"""


class JobError(Exception):
    """The job ends; a sentence with its remedy."""

    status = 1


class WrongSettings(JobError):
    """The job cannot be done as it was asked."""

    status = 2


class TooManyErrors(JobError):
    """More rows failed than may."""


class ShardError(Exception):
    """One shard cannot be read."""
