"""Limits on writes that another writer undoes, and the names of other writers.

Writing the same content again and again means that another writer undoes it (an operator of an older release, a
controller, a webhook, an HPA), and each round may replace every pod. So the same content is written a few times; then
writes pause, and one follows each pause.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shoal_operator.children.drift import differences
from shoal_operator.children.observation import dig
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.traffic import ScalingMode

HPA_MANAGER = "kube-controller-manager"
"""Field manager of the HPA controller, also for KEDA's HPAs."""
REPLICAS = "replicas of the Deployment"
_REPLICAS_PATH = ("f:spec", "f:replicas")


class Limit(NamedTuple):
    """A limit on writes of the same content."""

    writes: int
    """Writes before the first pause."""
    window_s: float
    """Time for which a write counts (s)."""
    min_pause_s: float
    """Length of the first pause (s); each further pause is twice as long."""
    max_pause_s: float


UNKNOWN_WRITER = Limit(writes=5, window_s=60.0, min_pause_s=60.0, max_pause_s=300.0)
KNOWN_WRITER = Limit(writes=2, window_s=7200.0, min_pause_s=3600.0, max_pause_s=3600.0)
"""For fields that another field manager has changed since the last write."""
URGENT = KNOWN_WRITER._replace(min_pause_s=60.0, max_pause_s=300.0)
"""As `KNOWN_WRITER`, for a service that serves no request without the write."""
REPLICAS_WRITER = KNOWN_WRITER._replace(writes=1)
"""For replicas that another field manager has changed since the last write."""


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """Recent writes of the same content; times in monotonic seconds."""

    text: str = ""
    """Digest of the content."""
    times_s: tuple[float, ...] = ()
    """Times of the writes since the last pause."""
    pause_s: float = 0.0
    """Length of the last pause."""
    until_s: float = float("-inf")
    """End of the pause."""


def try_write(last: WriteHistory, limit: Limit, text: str, now_s: float) -> tuple[bool, WriteHistory]:
    """Return whether content may be written now, and the next history.

    Args:
        last: recent writes of the object.
        limit: limit on writes of the same content.
        text: digest of the content.
        now_s: monotonic time (s).
    """
    # New content starts afresh, and so does the same content after a long time without writes.
    calm_s = now_s - max(last.until_s, *last.times_s[-1:], float("-inf"))
    if text != last.text or calm_s >= max(limit.window_s, 2 * limit.max_pause_s):
        last = WriteHistory(text)
    # A pause that is longer than this limit allows has ended.
    if 0 < last.until_s - now_s <= limit.max_pause_s:
        return False, last
    recent_s = tuple(each for each in last.times_s if now_s - each < limit.window_s)
    if len(recent_s) < (1 if last.pause_s else limit.writes):
        return True, replace(last, times_s=(*recent_s, now_s))
    pause_s = min(max(limit.min_pause_s, 2 * last.pause_s), limit.max_pause_s)
    return False, WriteHistory(text, pause_s=pause_s, until_s=now_s + pause_s)


@dataclass(slots=True)
class WriteLimits:
    """Recent writes of one service's children and status, by written object."""

    _known: dict[tuple[str, bool], WriteHistory] = field(default_factory=dict)
    """By what was written, and whether another field manager had changed it."""

    def may_write(self, what: str, text: str, now_s: float, known: Limit | None = None) -> bool:
        """Return whether a service's object may be written now.

        Args:
            what: the object, or a part of it.
            text: digest of the content.
            now_s: monotonic time (s).
            known: the limit, if another field manager has changed the content; this call then counts as a write. None
                applies the limit for an unknown writer, and the caller counts the write by `record_write`.
        """
        last = self._known.get((what, known is not None), WriteHistory())
        may, history = try_write(last, known or UNKNOWN_WRITER, text, now_s)
        if known or not may:
            self._known[what, known is not None] = history
        return may

    def record_write(self, what: str, text: str, now_s: float) -> None:
        """Record a write of a service's object."""
        last = self._known.get((what, False), WriteHistory())
        _, self._known[what, False] = try_write(last, UNKNOWN_WRITER, text, now_s)

    def pause(self, what: str, text: str, until_s: float) -> None:
        """Pause writes of content that the API server changes at each write."""
        self._known[what, True] = WriteHistory(text, until_s=until_s)

    def is_paused(self, what: str, text: str, now_s: float) -> bool:
        """Return whether writes of content that is changed at each write are paused."""
        last = self._known.get((what, True), WriteHistory())
        return text == last.text and now_s < last.until_s


def conflicting_writer(desired: Json, live: Json) -> tuple[str, str]:
    """Return the writer that changed a declared field, and the field's path.

    Returns: Two empty texts if no other field manager changed a declared field.
    """
    for path in differences(desired, live):
        if writer := writer_of(live, *path):
            return writer, ".".join(re.sub('^f:|^k:{"name":|}$', "", step) for step in path)
    return "", ""


def writer_of(live: Json, *path: str) -> str:
    """Return the last field manager other than the operator, or "".

    Args:
        live: the object.
        path: path of a field, in the form of ``managedFields``. Without a path, every field counts that was not written
            through a subresource; Kubernetes' own controllers write the status that way.
    """
    entries: list[Any] = dig(live, "metadata", "managedFields", default=[])
    wrote = (
        entry
        for entry in entries
        if entry.get("manager") != FIELD_MANAGER
        and (dig(entry, "fieldsV1", *path) is not None if path else not entry.get("subresource"))
    )
    latest: Json = max(wrote, key=lambda entry: str(entry.get("time", "")), default={})
    return str(latest.get("manager", ""))


def replicas_writer(live: Json) -> str:
    """Return the last field manager of ``spec.replicas`` besides the operator."""
    return writer_of(live, *_REPLICAS_PATH)


def replicas_request(resource: Json) -> str:
    """Return the replicas that a user has set, with the user's field manager.

    Returns: A text to compare with an earlier one; empty if no user set the replicas.
    """
    writer, external = replicas_writer(resource), dig(resource, "spec", "scaling", "mode") == ScalingMode.EXTERNAL
    return "" if external or writer in ("", HPA_MANAGER) else f"{writer} {dig(resource, 'spec', 'replicas')}"
