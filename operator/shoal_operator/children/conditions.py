"""Conditions of a status: state, reason, and a message with the remedy."""

from dataclasses import dataclass

from shoal_schema.fields.declaring import Json
from shoal_schema.fields.redaction import redacted, visible
from shoal_schema.resource.conditions import BatchConditionType, ConditionType, Reason, Status

MAX_MESSAGE_LENGTH = 4096
"""Characters; the API server refuses a status with a message of more than 32768."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status; ``message`` is for users."""

    type: ConditionType | BatchConditionType
    status: Status
    reason: Reason
    message: str


def stamped(condition: Condition, previous: list[Json], generation: int, now: str) -> Json:
    """Return the condition as JSON, with the time of its last transition.

    Args:
        condition: the condition to write.
        previous: the stored conditions.
        generation: generation of the spec that the condition is about.
        now: RFC 3339 time in UTC.
    """
    # As Kubernetes defines it: a new reason or message is no transition.
    old = find(previous, condition.type)
    same = old is not None and old.get("status") == condition.status
    return {
        "type": str(condition.type),
        "status": str(condition.status),
        "reason": str(condition.reason),
        "message": shortened(visible(redacted(condition.message))),
        "observedGeneration": generation,
        "lastTransitionTime": old.get("lastTransitionTime", now) if same and old else now,
    }


def shortened(message: str) -> str:
    """Return the message, cut to ``MAX_MESSAGE_LENGTH`` characters."""
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    end = f"... ({len(message)} characters in all)"
    return message[: MAX_MESSAGE_LENGTH - len(end)] + end


def stored_condition(conditions: list[Json], kind: ConditionType) -> Condition | None:
    """Return the stored condition of this type; None if missing or unknown."""
    stored = find(conditions, kind) or {}
    try:
        return Condition(kind, Status(stored["status"]), Reason(stored["reason"]), stored["message"])
    except (KeyError, ValueError):
        return None


def find(conditions: list[Json], kind: ConditionType | BatchConditionType) -> Json | None:
    """Return the stored condition of this type, or None."""
    return next((item for item in conditions if item.get("type") == kind), None)
