"""Detection of conflicting writers, and limits on repeated writes.

Writing the same content again and again means that another writer undoes it (an operator of an older release, a
controller, a webhook), and each round may replace every pod. If ``managedFields`` shows that another manager has
written the fields since, the content is written twice in `CONFLICT_WINDOW_S`, then once an hour. Other content is
written five times a minute, then once per pause. If the service serves no request without the content, the content is
written once per pause in both cases.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from shoal_operator.children.drift import differences
from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json

WRITES = 5
WINDOW_S = 60.0
MIN_PAUSE_S = 60.0
MAX_PAUSE_S = 300.0
CONFLICT_WRITES = 2
CONFLICT_WINDOW_S = 7200.0
"""Longer than the pause, so that a retry that is undone counts as the second write at once."""
CONFLICT_PAUSE_S = 3600.0


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """Recent writes of one object; times in monotonic seconds."""

    text: str = ""
    """Digest of the content."""
    writes_s: tuple[float, ...] = ()
    """Times of writes within the window."""
    pauses: int = 0
    """Number of times that writes were paused."""
    until_s: float = float("-inf")
    """End of the pause."""
    conflicts_s: tuple[float, ...] = ()
    """Times of writes to fields that another manager had changed."""


def try_write(
    last: WriteHistory, text: str, now_s: float, *, conflicting: bool = False, urgent: bool = False
) -> tuple[bool, WriteHistory]:
    """Return whether an object may be written now, and the next history.

    Args:
        last: recent writes of the object.
        text: digest of the content.
        now_s: monotonic time (s).
        conflicting: another field manager has changed the object since the last write.
        urgent: without the write the service serves no request, so no pause exceeds `MAX_PAUSE_S`.
    """
    # New content starts afresh, and so does the same content after a long time without writes.
    settled_s = max(last.until_s, *last.writes_s, float("-inf")) + 2 * MAX_PAUSE_S
    if text != last.text:
        last = WriteHistory(text)
    elif now_s >= settled_s:
        last = WriteHistory(text, conflicts_s=last.conflicts_s)
    if now_s < last.until_s and not (urgent and last.until_s - now_s > MAX_PAUSE_S):
        return False, last
    recent = tuple(each for each in last.writes_s if now_s - each < WINDOW_S)
    against_s = tuple(each for each in last.conflicts_s if now_s - each < CONFLICT_WINDOW_S)
    # Against another manager: two writes, then one per hour.
    if conflicting and len(against_s) < CONFLICT_WRITES:
        return True, WriteHistory(text, recent, last.pauses, last.until_s, (*against_s, now_s))
    pause_s = min(MIN_PAUSE_S * 2.0**last.pauses, MAX_PAUSE_S)
    pauses = min(last.pauses + 1, 10)
    if conflicting:
        # The last write stays counted, so that only one write follows the pause.
        pause_s, pauses = (pause_s, pauses) if urgent else (CONFLICT_PAUSE_S, last.pauses)
        return False, WriteHistory(text, recent, pauses, now_s + pause_s, against_s[-1:])
    # Without a known writer: a few writes per window, then one per pause.
    if len(recent) < (1 if last.pauses else WRITES):
        return True, WriteHistory(text, (*recent, now_s), last.pauses, last.until_s, against_s)
    return False, WriteHistory(text, recent, pauses, now_s + pause_s, against_s)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A write that admission changed; it is not repeated before ``until_s``."""

    text: str
    stored: str
    until_s: float


@dataclass(slots=True)
class WriteLimits:
    """Recent writes for one service: of its children and its status, by what was written."""

    _known: dict[str, WriteHistory] = field(default_factory=dict)
    _admitted: dict[str, _Admitted] = field(default_factory=dict)

    def may_write(self, what: str, text: str, now_s: float, *, conflicting: bool = False, urgent: bool = False) -> bool:
        """Return whether a service's object may be written now; see `try_write`."""
        last = self._known.get(what, WriteHistory())
        may, history = try_write(last, text, now_s, conflicting=conflicting, urgent=urgent)
        if conflicting or not may:
            self._known[what] = history
        return may

    def record_write(self, what: str, text: str, now_s: float) -> None:
        """Record a write of a service's object."""
        _, self._known[what] = try_write(self._known.get(what, WriteHistory()), text, now_s)

    def admit(self, what: str, text: str, stored: str, now_s: float) -> None:
        """Record that admission changed a write of a service's object."""
        self._admitted[what] = _Admitted(text, stored, now_s + MAX_PAUSE_S)

    def is_admitted(self, what: str, text: str, live: str, now_s: float) -> bool:
        """Return whether admission recently turned this write into ``live``."""
        last = self._admitted.get(what)
        return last is not None and (last.text, last.stored) == (text, live) and now_s < last.until_s


def last_writer(live: Json, ours: str) -> str:
    """Return the last other writer of an object, or else the operator.

    Writers of the status do not count, as Kubernetes' own controllers write it.
    """
    entries: list[Any] = dig(live, "metadata", "managedFields", default=[])
    return (
        _latest([entry for entry in entries if entry.get("manager") != ours and not entry.get("subresource")]) or ours
    )


def conflicting_writer(desired: Json, live: Json, ours: str) -> tuple[str, str]:
    """Return the writer of a changed field, and the field's path, or else ""."""
    for path in differences(desired, live):
        if writer := writer_of(live, ours, *path):
            return writer, ".".join(re.sub('^f:|^k:{"name":|}$', "", step) for step in path)
    return "", ""


def writer_of(live: Json, ours: str, *path: str) -> str:
    """Return the last field manager of a field besides the operator, or "".

    Args:
        live: the object.
        ours: the operator's field manager.
        path: path of the field, in the form of ``managedFields``.
    """
    entries: list[Any] = dig(live, "metadata", "managedFields", default=[])
    owners = [entry for entry in entries if dig(entry, "fieldsV1", *path) is not None]
    return _latest([entry for entry in owners if entry.get("manager") != ours])


def _latest(entries: list[Any]) -> str:
    latest: Json = max(entries, key=lambda entry: str(entry.get("time", "")), default={})
    return str(latest.get("manager", ""))
