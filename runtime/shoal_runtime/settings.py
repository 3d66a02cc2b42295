"""Settings of the runtime, read once from the environment; `shoal_schema` documents each setting.

`python -m shoal_runtime --help` prints all settings.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from shoal_schema.fields.declaring import RUNTIME
from shoal_schema.process import environment
from shoal_schema.process.environment import variables
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.process.settings.model import Metadata
from shoal_schema.process.settings.runtime import RuntimeProcess
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.runtime import PrecisionSpec, RuntimeSpec
from shoal_schema.resource.traffic import BatchingSpec


class Settings(Struct, frozen=True):
    """Settings of the runtime; see docs/reference/settings.md."""

    process: RuntimeProcess = field(default_factory=RuntimeProcess)
    metadata: Metadata = field(default_factory=Metadata)
    model: ModelSpec = field(default_factory=ModelSpec)
    runtime: RuntimeSpec = field(default_factory=RuntimeSpec)
    precision: PrecisionSpec = field(default_factory=PrecisionSpec)
    batching: BatchingSpec = field(default_factory=BatchingSpec)
    logging: LogSettings = field(default_factory=LogSettings)

    @property
    def uri(self) -> str:
        """The model's address: a directory, a file or an archive, local or remote."""
        return self.model.uri or ""

    @property
    def cache_dir(self) -> Path:
        """Directory of downloaded models."""
        if self.process.cache_dir:
            return Path(self.process.cache_dir)
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        # A container may run as a user without a home.
        return Path(home if os.path.isabs(home) else tempfile.gettempdir()) / "shoal"

    @property
    def instances(self) -> int:
        """Number of processes that hold the model."""
        return self.runtime.instances or 1

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Allowed batch sizes in increasing order; empty if they are chosen for the device."""
        return tuple(sorted(set(self.batching.allowed_batch_sizes or ())))

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, show_values: bool = True) -> "Settings":
        """Read the settings from environment variables; an empty value means the default.

        Args:
            environ: environment variables.
            show_values: whether error messages contain invalid values.

        Raises:
            SettingsError: a variable is missing, misspelled or out of range; the message names each.
        """
        required = f"SHOAL_MODEL_URI is required: {variables()['SHOAL_MODEL_URI'].allowed}"
        faults = [] if environ.get("SHOAL_MODEL_URI") else [required]
        return environment.read(cls, environ, RUNTIME, faults=faults, show_values=show_values)


def help_text() -> str:
    """Return the text of `--help`: every variable, its range, its default and its meaning."""
    lines = [
        "usage: python -m shoal_runtime [fetch | inspect FILE | precision FILE [ROWS] | batch | batch-ray | --version]",
        "",
    ]
    lines += [
        "fetch: only download the model into the cache",
        "inspect FILE: load it and write its description to FILE",
        "precision FILE [ROWS]: measure it in each precision, on generated rows or those of ROWS",
    ]
    lines += ["batch: score the rows of SHOAL_BATCH_INPUT; batch-ray: the same on a Ray cluster", ""]
    lines += ["Settings are environment variables:", ""]
    for name, each in variables().items():
        if each.env and RUNTIME in each.env.readers:
            default: Any = str(each.unset).lower() if isinstance(each.unset, bool) else each.unset
            suffix = "" if default is None or default == () else f"; default {default}"
            lines += [f"  {name}", f"      {each.description}", f"      {each.allowed}{suffix}"]
    return "\n".join(lines)
