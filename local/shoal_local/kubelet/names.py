"""The hosts file of containers, which resolves Services in place of DNS.

A change of a Service is written at once; programs read the file at each lookup.
"""

from collections.abc import Iterable
from pathlib import Path

from shoal_local.api_client import SERVICES, ApiClient
from shoal_local.informer import Informer
from shoal_local.objects import Object

HOSTS = Path("/etc/hosts")
_SUFFIXES = ("", ".svc", ".svc.cluster.local")


def hosts_text(machine: str, services: Iterable[Object]) -> str:
    """Return ``machine`` and one hosts line per Service with a cluster IP."""
    lines = [machine.rstrip("\n")]
    for service in services:
        address, meta = service["spec"].get("clusterIP"), service["metadata"]
        # Headless services have no address, and their pods' names are not supported.
        if address and address != "None":
            name = f"{meta['name']}.{meta['namespace']}"
            lines.append(" ".join([address, *(name + suffix for suffix in _SUFFIXES)]))
    return "\n".join([*lines, ""])


class HostsFile:
    """The hosts file of containers, rewritten when a Service changes."""

    def __init__(self, client: ApiClient, file: Path) -> None:
        self._services = Informer(client, SERVICES)
        self._services.listen(lambda _: self._write())
        self._file = file
        self._text = ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self._write()

    async def run(self) -> None:
        """Watch Services until cancelled."""
        await self._services.run()

    def _write(self) -> None:
        own = HOSTS.read_text() if HOSTS.exists() else ""
        text = hosts_text(own, self._services.objects.values())
        if text != self._text:
            self._text = text
            # In place: containers have mounted this inode. Never empty: they look up localhost too.
            with self._file.open("r+") as file:
                file.write(text)
                file.truncate()
