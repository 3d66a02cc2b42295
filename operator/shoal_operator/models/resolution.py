"""Resolution of a model's mutable name to a version: its state, and the delays between requests to the registry."""

from dataclasses import dataclass
from typing import TypeGuard

from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.locations import LocationError, moves, parse

RETRY_S = 5.0
"""Delay after a failed request; doubled after each further failure, up to the operator's interval."""


@dataclass(frozen=True, slots=True)
class ModelResolution:
    """Resolution of a mutable model name to a version."""

    uri: str
    resolved: str = ""
    """The version for pods; empty while unknown."""
    problem: str = ""
    """Reason that the last request failed; empty if it succeeded."""

    def as_status(self) -> Json:
        """Return ``status.model``; empty while the version is unknown."""
        return {"uri": self.uri, "resolved": self.resolved} if self.resolved else {}


def is_unresolved(resolution: ModelResolution | None) -> TypeGuard[ModelResolution]:
    """Return whether a mutable model name has no version yet; a fixed name has no resolution."""
    return resolution is not None and not resolution.resolved


def stored_version(resource: Json, uri: str) -> str:
    """Return the valid version of ``uri`` in the status, or ""."""
    stored = stored_resolution(resource)
    return stored.resolved if stored.uri == uri else ""


def stored_resolution(resource: Json) -> ModelResolution:
    """Return the model name and version in the status; empty if invalid."""
    uri, resolved = (dig(resource, "status", "model", each) for each in ("uri", "resolved"))
    valid = isinstance(uri, str) and isinstance(resolved, str) and is_version_of(resolved, uri)
    return ModelResolution(uri, resolved) if valid else ModelResolution("")


def is_of_model(other: str, uri: str) -> bool:
    """Return whether two URIs name the same model, perhaps at different versions."""
    try:
        found, name = parse(other), parse(uri)
    except LocationError:
        return False
    return (found.scheme, found.authority, found.path) == (name.scheme, name.authority, name.path)


def is_version_of(resolved: str, uri: str) -> bool:
    """Return whether ``resolved`` is a fixed version of the model of ``uri``."""
    return is_of_model(resolved, uri) and not moves(resolved)


def pause_s(failures: int, interval_s: float) -> float:
    """Return the delay before the next request to a registry (s).

    Args:
        failures: failed requests in a row.
        interval_s: delay after a successful request.
    """
    # Exponential backoff, bounded by the interval.
    return min(interval_s, RETRY_S * 2.0 ** min(failures - 1, 16)) if failures else interval_s
