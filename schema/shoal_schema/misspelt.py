"""Names in the environment that look like settings and are not."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from shoal_schema.declaring import Process

PREFIX = "SHOAL_"
FAMILIES: Mapping[str, tuple[str, ...]] = {
    Process.PROXY: ("SHOAL_PROXY_", "SHOAL_QUEUE_"),
    Process.RUNTIME: ("SHOAL_RUNTIME_",),
    Process.OPERATOR: ("SHOAL_OPERATOR_",),
    Process.WAITING: ("SHOAL_WAITING_",),
    Process.BATCH: ("SHOAL_BATCH_",),
    "tests": ("SHOAL_E2E_", "SHOAL_WRITE_"),
}
"""Prefixes that one component alone has; it is the one to judge what is spelt so: processes may share an environment,
and not be of one release."""
# Kubernetes tells a pod of each Service in its namespace; of one called shoal-web under SHOAL_WEB_...
_SERVICE = re.compile(r"SHOAL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_PORT = re.compile(r"SHOAL_(\w+_)?PORT")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def misspelt(environ: Mapping[str, str], process: Process, known: Collection[str]) -> list[str]:
    """Return a sentence for each name of ``environ`` that starts as settings do and is not one.

    Args:
        environ: names and values.
        process: who asks.
        known: the settings of all processes.
    """
    own = Process.RUNTIME if process is Process.MODEL else process
    others = tuple(prefix for name, family in FAMILIES.items() if name != own for prefix in family)
    strange = [
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in known and not name.startswith(others) and not _service(name, value)
    ]
    return [f"there is no setting {name}{_hint(name, known)}" for name in sorted(strange)]


def _service(name: str, value: str) -> bool:
    if _SERVICE.fullmatch(name):
        return True
    return bool(_SERVICE_PORT.fullmatch(name) and _SERVICE_ADDRESS.match(value))


def _hint(name: str, names: Collection[str]) -> str:
    families = [prefix for family in FAMILIES.values() for prefix in family]
    near = get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    if near:
        return f"; did you mean {near[0]}?"
    known = f"{', '.join(families)} and docs/reference/settings.md"
    return f"; names that start with {PREFIX} are Shoal's: {known}"
