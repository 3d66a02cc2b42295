"""What a job is asked for, read once from the environment."""

from collections.abc import Mapping

from msgspec import Struct

from shoal_schema import environment
from shoal_schema.declaring import BATCH
from shoal_schema.environment import SettingsError
from shoal_schema.processes import BatchProcess, LogSettings
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.offline import ERRORS_IN_COLUMN, BatchInput, BatchLimits, BatchOutput


class JobSettings(Struct, frozen=True):
    """Everything of a job; of the model what its rows need, the engine reads the rest."""

    job: BatchLimits
    input: BatchInput
    output: BatchOutput
    process: BatchProcess
    model: ModelSpec
    logging: LogSettings

    @property
    def errors_uri(self) -> str | None:
        """Where rows that failed go; None: among the answers."""
        return None if self.output.errors == ERRORS_IN_COLUMN else self.output.errors

    @property
    def max_error_share(self) -> float:
        """Of the rows, how many may fail."""
        return float(self.job.max_error_share)


def from_env(environ: Mapping[str, str]) -> JobSettings:
    """Return what the environment asks for.

    Raises:
        SettingsError: names every variable that is missing, misspelt, or out of range, with its value.
    """
    required = {"SHOAL_BATCH_INPUT": "where the rows lie", "SHOAL_BATCH_OUTPUT": "where the answers go"}
    if lacking := [f"{name} is required: {what}" for name, what in required.items() if not environ.get(name)]:
        raise SettingsError("; ".join(lacking))
    return environment.read(JobSettings, environ, BATCH)
