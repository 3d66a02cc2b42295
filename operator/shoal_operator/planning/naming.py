"""Which version a model's moving name stands for: what is known, and when to ask again."""

from dataclasses import dataclass

from shoal_operator.planning.observation import dig
from shoal_schema.declaring import Json
from shoal_schema.resource.locations import LocationError, moves, parse

RETRY_S = 5.0
"""After a question that brought no version; twice as long after each further one, up to the operator's interval."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What is known of a name that moves.

    Args:
        uri: the name.
        resolved: the version that pods get; empty while none is known.
        problem: why the last question brought none; empty where it did.
    """

    uri: str
    resolved: str = ""
    problem: str = ""

    def as_status(self) -> Json:
        """Return ``status.model``; empty while no version is known."""
        return {"uri": self.uri, "resolved": self.resolved} if self.resolved else {}


def stored_version(resource: Json, uri: str) -> str:
    """Return the version that the status says ``uri`` stands for; empty where it says none that pods could be given."""
    stored = stored_naming(resource)
    return stored.resolved if stored.uri == uri else ""


def stored_naming(resource: Json) -> Naming:
    """Return the name and its version that the status tells, of this spec or an older one; both may be empty."""
    uri, resolved = (dig(resource, "status", "model", each) for each in ("uri", "resolved"))
    told = isinstance(uri, str) and isinstance(resolved, str) and is_version_of(resolved, uri)
    return Naming(uri, resolved) if told else Naming("")


def is_of_model(answer: str, uri: str) -> bool:
    """Return whether an answer names the same model, by its version or otherwise, whoever says so."""
    try:
        told, name = parse(answer), parse(uri)
    except LocationError:
        return False
    return (told.scheme, told.authority, told.path) == (name.scheme, name.authority, name.path)


def is_version_of(resolved: str, uri: str) -> bool:
    """Return whether ``resolved`` names one version of the same model, whoever says so."""
    return is_of_model(resolved, uri) and not moves(resolved)


def pause_s(failures: int, interval_s: float) -> float:
    """Return how long to wait before the next question.

    Args:
        failures: questions in a row that brought no version.
        interval_s: what the operator waits after one that did.
    """
    return min(interval_s, RETRY_S * 2.0 ** min(failures - 1, 16)) if failures else interval_s
