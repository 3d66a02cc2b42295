"""Errors for environment variables that look like settings but are unknown."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from shoal_schema.fields.declaring import Process
from shoal_schema.guides import guide

PREFIX = "SHOAL_"
# SHOAL_BATCHING_*, SHOAL_MODEL_* and SHOAL_LOG_* belong to several components.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    Process.PROXY: ("SHOAL_PROXY_", "SHOAL_QUEUE_"),
    Process.RUNTIME: ("SHOAL_RUNTIME_",),
    Process.OPERATOR: ("SHOAL_OPERATOR_",),
    Process.ACTIVATOR: ("SHOAL_ACTIVATOR_",),
    Process.BATCH: ("SHOAL_BATCH_",),
    "tests": ("SHOAL_E2E_", "SHOAL_WRITE_"),
}
"""Prefixes of each component, which alone reports unknown names with them: processes of different releases may share an
environment."""
# Kubernetes sets variables for each Service of the namespace: SHOAL_WEB_... for one called shoal-web.
_SERVICE = re.compile(r"SHOAL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_PORT = re.compile(r"SHOAL_(\w+_)?PORT")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unknown_variable_errors(environ: Mapping[str, str], process: Process, known: Collection[str]) -> list[str]:
    """Return an error for each unknown variable that has the prefix of settings.

    Args:
        environ: environment variables.
        process: the process that reads the settings.
        known: variables of the settings of all processes.
    """
    # The init container is a program of the runtime.
    own = Process.RUNTIME if process is Process.MODEL else process
    others = tuple(prefix for name, family in FAMILIES.items() if name != own for prefix in family)
    families = [prefix for family in FAMILIES.values() for prefix in family]
    errors = []
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name in known or name.startswith(others):
            continue
        # SHOAL_WEB_PORT could be a setting, but its value shows that Kubernetes set it.
        if _SERVICE.fullmatch(name) or (_SERVICE_PORT.fullmatch(name) and _SERVICE_ADDRESS.match(value)):
            continue
        if near := get_close_matches(name, sorted(known), n=1, cutoff=0.75):
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"settings start with {', '.join(families)}{guide('reference/settings', ' and are listed in ')}"
        errors.append(f"there is no setting {name}; {hint}")
    return errors
