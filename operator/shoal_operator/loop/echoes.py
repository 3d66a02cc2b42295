"""Recognition of events of the operator's own writes.

Every write causes an event. The reconciliation that wrote an object knows its content, so the event with exactly that
version needs no further reconciliation.
"""

from dataclasses import dataclass, field

from shoal_schema.fields.declaring import Json


@dataclass(slots=True)
class Echoes:
    """The version of the operator's last write to each object, by uid."""

    _expected: dict[str, str] = field(default_factory=dict)

    def expect(self, written: Json) -> None:
        """Record the version of an object that the operator wrote.

        Args:
            written: the object in the API server's response.
        """
        metadata = written.get("metadata", {})
        # A Status response to a deletion has neither.
        if "uid" in metadata and "resourceVersion" in metadata:
            self._expected[metadata["uid"]] = metadata["resourceVersion"]

    def is_echo(self, body: Json) -> bool:
        """Return whether an event has exactly the version of the operator's write."""
        metadata = body["metadata"]
        expected = self._expected.get(metadata.get("uid"))
        return expected is not None and expected == metadata.get("resourceVersion")

    def forget(self, body: Json) -> None:
        """Drop the recorded version of a deleted object."""
        self._expected.pop(body["metadata"].get("uid"), None)
