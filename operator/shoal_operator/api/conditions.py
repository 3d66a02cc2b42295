"""Conditions: what is true of a service now, why, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.api.fields import Json

LONGEST_MESSAGE = 4096
"""Characters; the API server refuses a status with a message of more than 32768."""


class ConditionType(StrEnum):
    """One question about a service."""

    READY = "Ready"
    """The summary: everything below is as the spec asks."""
    AVAILABLE = "Available"
    """At least one pod answers requests."""
    PROGRESSING = "Progressing"
    """Pods of the newest spec are there, or on their way."""
    MODEL_LOADED = "ModelLoaded"
    """The model of the newest spec is loaded and warm in a pod."""
    ROUTE_READY = "RouteReady"
    """Callers from outside the cluster reach the service."""
    SCALING_ACTIVE = "ScalingActive"
    """Replicas follow the queue."""
    OBJECTIVE_ATTAINABLE = "ObjectiveAttainable"
    """A request alone would meet the latency objective."""
    SOLE_OPERATOR = "SoleOperator"
    """No other install of the operator wants the service; told only while one does."""


class Status(StrEnum):
    """A condition's answer."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why, in one word; monitoring may rely on these."""

    # All is well.
    READY = "Ready"
    AVAILABLE = "Available"
    SERVED_BY_OLD_PODS = "ServedByOldPods"
    COMPLETE = "Complete"
    MODEL_LOADED = "ModelLoaded"
    ROUTE_ACCEPTED = "RouteAccepted"
    CLUSTER_INTERNAL = "ClusterInternal"
    FOLLOWING_LOAD = "FollowingLoad"
    SCALING_OFF = "ScalingOff"
    OBJECTIVE_ATTAINABLE = "ObjectiveAttainable"
    SCALED_TO_ZERO = "ScaledToZero"
    # On the way.
    ROLLING_OUT = "RollingOut"
    MODEL_LOADING = "ModelLoading"
    ROUTE_PENDING = "RoutePending"
    PODS_NOT_READY = "PodsNotReady"
    NO_ENDPOINTS = "NoEndpoints"
    SCALING_UP = "ScalingUp"
    NO_LOAD_DATA = "NoLoadData"
    NO_LATENCY_DATA = "NoLatencyData"
    WAITING_FOR_CLEANUP = "WaitingForCleanup"
    # Somebody must act.
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    APPLY_FAILED = "ApplyFailed"
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    RUNTIME_CRASHED = "RuntimeCrashed"
    PROXY_CRASHED = "ProxyCrashed"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROUTE_REFUSED = "RouteRefused"
    GATEWAY_API_MISSING = "GatewayApiMissing"
    OBJECTIVE_UNATTAINABLE = "ObjectiveUnattainable"
    ANOTHER_OPERATOR = "AnotherOperator"


FAILURES = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NAME_TAKEN,
        Reason.APPLY_FAILED,
        Reason.INSUFFICIENT_GPU,
        Reason.UNSCHEDULABLE,
        Reason.PODS_REFUSED,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_INVALID,
        Reason.MODEL_DOWNLOAD_FAILED,
        Reason.RUNTIME_CRASHED,
        Reason.PROXY_CRASHED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.ROLLOUT_PAUSED,
        Reason.ROUTE_REFUSED,
        Reason.GATEWAY_API_MISSING,
        Reason.OBJECTIVE_UNATTAINABLE,
        Reason.ANOTHER_OPERATOR,
    }
)
"""Reasons that wait for a person; their events are warnings."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One answer; ``message`` is a sentence for a person."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str


def stamped(condition: Condition, previous: list[Json], generation: int, now: str) -> Json:
    """Return the condition as JSON; its transition time stays while its status stays.

    Args:
        condition: the answer.
        previous: the conditions now stored.
        generation: the spec's generation that the answer is about.
        now: RFC 3339 time in UTC.
    """
    old = find(previous, condition.type)
    same = old is not None and old.get("status") == condition.status
    return {
        "type": str(condition.type),
        "status": str(condition.status),
        "reason": str(condition.reason),
        "message": shortened(condition.message),
        "observedGeneration": generation,
        "lastTransitionTime": old.get("lastTransitionTime", now) if same and old else now,
    }


def shortened(message: str) -> str:
    """Return a message of at most ``LONGEST_MESSAGE`` characters: its beginning, and how long it was."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    end = f"... ({len(message)} characters in all)"
    return message[: LONGEST_MESSAGE - len(end)] + end


def told_before(conditions: list[Json], kind: ConditionType) -> Condition | None:
    """Return the stored condition of this type, or None; also when another release wrote it in words unknown here."""
    stored = find(conditions, kind) or {}
    try:
        return Condition(kind, Status(stored["status"]), Reason(stored["reason"]), stored["message"])
    except (KeyError, ValueError):
        return None


def find(conditions: list[Json], kind: ConditionType) -> Json | None:
    """Return the stored condition of this type, or None."""
    return next((item for item in conditions if item.get("type") == kind), None)
