"""The operator's own settings, from the environment."""

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from shoal_operator.children.observation import Key
from shoal_operator.loop.lease import LEASE_NAME
from shoal_schema.fields.declaring import OPERATOR
from shoal_schema.process import environment
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.process.settings.operator import OperatorProcess


class Settings(Struct, frozen=True):
    """The operator's settings; `shoal_schema.process.settings.operator` describes each."""

    process: OperatorProcess
    logging: LogSettings

    @property
    def lease(self) -> Key:
        """The Lease that decides which operator writes."""
        return Key(self.process.namespace, LEASE_NAME)

    @property
    def heartbeat(self) -> Key:
        """The Lease whose renewals show that watches work."""
        watched = self.process.watch_namespaces
        if not watched or self.process.namespace in watched:
            return self.lease
        return Key(watched[0], f"{LEASE_NAME}-heartbeat")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables.

        Raises:
            shoal_schema.process.environment.SettingsError: a value is out of range, or a name is misspelt.
        """
        return environment.read(cls, environ, OPERATOR)
