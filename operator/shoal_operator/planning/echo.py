"""Telling our own writes from other news.

Every write comes back as an event. A look has already taken what it wrote into account, so the
event that carries exactly that version needs no second look.
"""

from dataclasses import dataclass, field

from shoal_schema.declaring import Json


@dataclass(slots=True)
class Echoes:
    """The version of each object that we wrote last and have not yet heard of."""

    _expected: dict[str, str] = field(default_factory=dict)

    def expect(self, written: Json) -> None:
        """Record a write's answer."""
        metadata = written.get("metadata", {})
        if "uid" in metadata and "resourceVersion" in metadata:
            self._expected[metadata["uid"]] = metadata["resourceVersion"]

    def is_echo(self, body: Json) -> bool:
        """Return whether an event shows exactly what we wrote last."""
        metadata = body["metadata"]
        expected = self._expected.get(metadata.get("uid"))
        return expected is not None and expected == metadata.get("resourceVersion")

    def forget(self, body: Json) -> None:
        """Forget a deleted object."""
        self._expected.pop(body["metadata"].get("uid"), None)
