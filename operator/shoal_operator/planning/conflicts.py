"""Noticing that another writer changes our writes back, and not writing without end.

The same text that has to be written again and again is a contest (with an operator of a release that names no keeper, a
controller, a webhook), and each round of it may replace every pod. A text whose fields another manager has written
since, by ``managedFields``, is written twice in `CONFLICT_WINDOW_S`, whatever the other's period, and then once an hour.
Any other text is written a few times a minute, and then once a pause.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from shoal_operator.planning.drift import differences
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json

WRITES = 5
WINDOW_S = 60.0
MIN_PAUSE_S = 60.0
MAX_PAUSE_S = 300.0
CONFLICT_WRITES = 2
CONFLICT_WINDOW_S = 7200.0
"""Longer than the pause: a retry that is changed back is the second at once."""
CONFLICT_PAUSE_S = 3600.0


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """What was written lately, in monotonic seconds.

    Args:
        text: what was written.
        writes_s: when, within the window.
        pauses: how often it had to be held back.
        until_s: nothing is written before then.
        conflicts_s: when it was written against another manager.
    """

    text: str = ""
    writes_s: tuple[float, ...] = ()
    pauses: int = 0
    until_s: float = float("-inf")
    conflicts_s: tuple[float, ...] = ()


def try_write(last: WriteHistory, text: str, now_s: float, *, conflicting: bool = False) -> tuple[bool, WriteHistory]:
    """Return whether a text may be written now, and what to remember.

    Args:
        last: what is remembered.
        text: to be written.
        now_s: monotonic time (s).
        conflicting: another manager has written a field of it since.
    """
    settled_s = max(last.until_s, *last.writes_s, float("-inf")) + 2 * MAX_PAUSE_S
    if text != last.text:
        last = WriteHistory(text)
    elif now_s >= settled_s:
        last = WriteHistory(text, conflicts_s=last.conflicts_s)
    if now_s < last.until_s:
        return False, last
    recent = tuple(each for each in last.writes_s if now_s - each < WINDOW_S)
    against_s = tuple(each for each in last.conflicts_s if now_s - each < CONFLICT_WINDOW_S)
    if conflicting and len(against_s) < CONFLICT_WRITES:
        return True, WriteHistory(text, recent, last.pauses, last.until_s, (*against_s, now_s))
    if conflicting:
        # The last write stays counted: after the pause there is one more, and no two.
        return False, WriteHistory(text, recent, last.pauses, now_s + CONFLICT_PAUSE_S, against_s[-1:])
    if len(recent) < (1 if last.pauses else WRITES):
        return True, WriteHistory(text, (*recent, now_s), last.pauses, last.until_s, against_s)
    pause_s = min(MIN_PAUSE_S * 2.0**last.pauses, MAX_PAUSE_S)
    return False, WriteHistory(text, recent, min(last.pauses + 1, 10), now_s + pause_s, against_s)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """What an API server made of a text as it took it, to be borne until a time in monotonic seconds."""

    text: str
    answer: str
    until_s: float


@dataclass(slots=True)
class Conflicts:
    """What was written lately of each service, by what it is part of."""

    _known: dict[Key, dict[str, WriteHistory]] = field(default_factory=dict)
    _admitted: dict[Key, dict[str, _Admitted]] = field(default_factory=dict)

    def may_write(self, key: Key, what: str, text: str, now_s: float, *, conflicting: bool = False) -> bool:
        """Return whether a text may be written now; see `try_write`."""
        known = self._known.setdefault(key, {})
        may, history = try_write(known.get(what, WriteHistory()), text, now_s, conflicting=conflicting)
        if conflicting or not may:
            known[what] = history
        return may

    def wrote(self, key: Key, what: str, text: str, now_s: float) -> None:
        """Record that a text was written."""
        known = self._known.setdefault(key, {})
        _, known[what] = try_write(known.get(what, WriteHistory()), text, now_s)

    def admit(self, key: Key, what: str, text: str, answer: str, now_s: float) -> None:
        """Record that the answer to a write was not what was written: the next one would be answered alike."""
        self._admitted.setdefault(key, {})[what] = _Admitted(text, answer, now_s + MAX_PAUSE_S)

    def is_admitted(self, key: Key, what: str, text: str, live: str, now_s: float) -> bool:
        """Return whether what is stored is the answer that the text got lately, so that writing it again is idle."""
        last = self._admitted.get(key, {}).get(what)
        return last is not None and (last.text, last.answer) == (text, live) and now_s < last.until_s

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._known.pop(key, None)
        self._admitted.pop(key, None)


def last_writer(live: Json, ours: str) -> str:
    """Return the field manager that last wrote an object beside ours; ours when there was no other.

    Kubernetes' own controllers write the status, and are not conflicting.
    """
    entries: list[Any] = dig(live, "metadata", "managedFields", default=[])
    return (
        _latest([entry for entry in entries if entry.get("manager") != ours and not entry.get("subresource")]) or ours
    )


def conflicting_writer(desired: Json, live: Json, ours: str) -> tuple[str, str]:
    """Return who changed a field of ours, and its path for a reader; empty where no other manager owns one."""
    for path in differences(desired, live):
        if writer := writer_of(live, ours, *path):
            return writer, ".".join(re.sub('^f:|^k:{"name":|}$', "", step) for step in path)
    return "", ""


def writer_of(live: Json, ours: str, *path: str) -> str:
    """Return the field manager beside ours that last wrote a field, by a subresource or not; empty where none did.

    Args:
        live: the object.
        ours: not this one.
        path: of the field, as ``managedFields`` write it.
    """
    entries: list[Any] = dig(live, "metadata", "managedFields", default=[])
    owners = [entry for entry in entries if dig(entry, "fieldsV1", *path) is not None]
    return _latest([entry for entry in owners if entry.get("manager") != ours])


def _latest(entries: list[Any]) -> str:
    latest: Json = max(entries, key=lambda entry: str(entry.get("time", "")), default={})
    return str(latest.get("manager", ""))
