"""Settings of a batch job and of its engine processes."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from shoal_schema.fields.declaring import BATCH
from shoal_schema.process import environment
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.settings.batch import BatchProcess
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.offline import ERRORS_IN_COLUMN, BatchInput, BatchLimits, BatchOutput


class JobSettings(Struct, frozen=True):
    """Settings of a batch job.

    The engine process reads those settings of the model that do not affect rows.
    """

    job: BatchLimits
    input: BatchInput
    output: BatchOutput
    process: BatchProcess
    model: ModelSpec
    logging: LogSettings

    @property
    def errors_uri(self) -> str | None:
        """Address of the directory of failed rows; None if the results hold them."""
        return None if self.output.errors == ERRORS_IN_COLUMN else self.output.errors

    @property
    def max_error_share(self) -> float:
        """Share of the rows that may fail, 0 to 1."""
        return float(self.job.max_error_share)


def from_env(environ: Mapping[str, str]) -> JobSettings:
    """Read a job's settings from environment variables.

    Raises:
        SettingsError: a variable is missing, misspelled or out of range; the message names each with its value.
    """
    # Reported together, before the values of the others are checked.
    required = {"SHOAL_BATCH_INPUT": "the address of the rows", "SHOAL_BATCH_OUTPUT": "the address for the results"}
    if missing := [f"{name} is required: {what}" for name, what in required.items() if not environ.get(name)]:
        raise SettingsError("; ".join(missing))
    return environment.read(JobSettings, environ, BATCH)


def part_of_the_machine(
    environment: Mapping[str, str], number: int, engines: int, *, gpus: Sequence[str], cores: int
) -> dict[str, str]:
    """Return one engine's environment, with its share of the machine.

    Args:
        environment: variables of all engines; existing thread counts are kept.
        number: number of the engine, from 0.
        engines: number of engines.
        gpus: visible GPUs, by number or name.
        cores: number of usable cores.
    """
    if engines == 1:
        return dict(environment)
    if gpus:
        return {**environment, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
    # More threads than cores only wait for each other.
    return {"OMP_NUM_THREADS": str(max(1, cores // engines)), **environment}


def seen_gpus(environment: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    """Return the GPUs that may be used.

    These are the GPUs in ``CUDA_VISIBLE_DEVICES``, or all GPUs with a device file if the variable is not set.

    Args:
        environment: environment variables.
        devices: file names in /dev, such as ``nvidia0``.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    # Such as nvidia0; nvidiactl and nvidia-uvm are no GPUs.
    numbers = (each.removeprefix("nvidia") for each in devices if each.startswith("nvidia"))
    return [str(number) for number in sorted(int(each) for each in numbers if each.isdecimal())]
