"""Names in the environment that look like settings and are none.

Proxy, runtime and operator hold this module word for word (tests/contract/test_names.py): none imports another, and
each must let pass what is meant for the others, since they may share an environment. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

PREFIX = "SHOAL_"
FAMILIES = {
    "proxy": ("SHOAL_PROXY_", "SHOAL_QUEUE_"),
    "runtime": ("SHOAL_RUNTIME_",),
    "operator": ("SHOAL_OPERATOR_",),
    "tests": ("SHOAL_E2E_", "SHOAL_WRITE_"),
}
"""Prefixes that one component alone has; it is the one to judge what is spelt so."""
SHARED = frozenset({
    "SHOAL_MODEL_NAME", "SHOAL_MODEL_VERSION", "SHOAL_MODEL_URI", "SHOAL_MODEL_CHECKSUM", "SHOAL_MODEL_CACHE_DIR",
    "SHOAL_MODEL_FORMAT", "SHOAL_MODEL_HANDLER", "SHOAL_MODEL_PARAMETERS", "SHOAL_MODEL_ALLOW_PICKLE",
    "SHOAL_BATCHING_MAX_BATCH_SIZE", "SHOAL_BATCHING_ALLOWED_BATCH_SIZES", "SHOAL_BATCHING_POLICY",
    "SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", "SHOAL_BATCHING_MAX_DELAY_MS", "SHOAL_BATCHING_PAD_BUCKETS",
    "SHOAL_BATCHING_IN_FLIGHT", "SHOAL_BATCHING_IDEMPOTENT", "SHOAL_BATCHING_COALESCE",
    "SHOAL_BATCHING_PADDING_FACTOR", "SHOAL_MODEL_MAX_BYTES", "SHOAL_MODEL_MAX_FILES", "SHOAL_MODEL_MAX_RATIO",
    "SHOAL_MODEL_FETCH_TIMEOUT_S", "SHOAL_MODEL_LOAD_TIMEOUT_S", "SHOAL_LOG_LEVEL",
})  # fmt: skip
"""All names of the families that several components read from."""
# Kubernetes tells a pod of each Service in its namespace; of one called shoal-web under SHOAL_WEB_...
_SERVICE = re.compile(r"SHOAL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_PORT = re.compile(r"SHOAL_(\w+_)?PORT")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def misspelt(environ: Mapping[str, str], component: str, known: Collection[str]) -> list[str]:
    """Return a sentence for each name of ``environ`` that starts as settings do and is none.

    Args:
        environ: names and values.
        component: who asks, a key of `FAMILIES`.
        known: the settings that it reads.
    """
    others = tuple(prefix for name, family in FAMILIES.items() if name != component for prefix in family)
    names = {*known, *SHARED}
    strange = [
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in names and not name.startswith(others) and not _service(name, value)
    ]
    return [f"there is no setting {name}{_hint(name, names)}" for name in sorted(strange)]


def _service(name: str, value: str) -> bool:
    if _SERVICE.fullmatch(name):
        return True
    return bool(_SERVICE_PORT.fullmatch(name) and _SERVICE_ADDRESS.match(value))


def _hint(name: str, names: Collection[str]) -> str:
    families = [prefix for family in FAMILIES.values() for prefix in family]
    near = get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; names that start with {PREFIX} are Shoal's: {', '.join(families)} and docs/contracts.md, section 3"
