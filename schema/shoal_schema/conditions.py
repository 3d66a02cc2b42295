"""What is said of a service in its status: questions, answers, and reasons; monitoring may rely on them."""

from enum import StrEnum
from typing import Literal


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
    GRAPH_VALID = "GraphValid"
    """The models of a graph can be asked and take what they are given; in the place of `ModelLoaded`."""
    MODEL_RESOLVED = "ModelResolved"
    """The version is known that the model's name stands for; told only of names that move."""
    ROUTE_READY = "RouteReady"
    """Callers from outside the cluster reach the service."""
    SCALING_ACTIVE = "ScalingActive"
    """Replicas follow the load."""
    SCALING_LIMITED = "ScalingLimited"
    """The load asks for more replicas than there may be; told only while it does."""
    WAITING_ROOM_READY = "WaitingRoomReady"
    """Requests for a service that may sleep would be held and heard; told only while they would not."""
    OBJECTIVE_ATTAINABLE = "ObjectiveAttainable"
    """A request alone would meet the latency objective."""
    ROWS_INDEPENDENT = "RowsIndependent"
    """Each row of a shared batch gets a result of its own; told once rows were run again. It never changes `Ready`."""
    SOLE_OPERATOR = "SoleOperator"
    """No other install of the operator wants the service; told only while one does."""
    SIBLINGS_FOUND = "SiblingsFound"
    """Replicas find one another; told only while they should and do not. It never changes `Ready`."""
    UPGRADED = "Upgraded"
    """Pods have the images and the template of this operator; told only while they have not, or just got them."""
    SPEC_READ = "SpecRead"
    """Every field that was written is read; told only while one is not."""


class BatchConditionType(StrEnum):
    """One question about a job; the answers of a Job of Kubernetes, and whether its pods run."""

    COMPLETE = "Complete"
    """All rows have an answer or an error."""
    FAILED = "Failed"
    """It has ended, and not all is done; nothing is tried again by itself."""
    SUSPENDED = "Suspended"
    """No pods run until it is resumed."""
    RUNNING = "Running"
    """A pod scores rows."""


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
    MODEL_RESOLVED = "ModelResolved"
    GRAPH_VALID = "GraphValid"
    ROUTE_ACCEPTED = "RouteAccepted"
    CLUSTER_INTERNAL = "ClusterInternal"
    FOLLOWING_LOAD = "FollowingLoad"
    EXTERNAL = "External"
    OBJECTIVE_ATTAINABLE = "ObjectiveAttainable"
    ROWS_INDEPENDENT = "RowsIndependent"
    SCALED_TO_ZERO = "ScaledToZero"
    """It sleeps, and whoever calls is held until it is awake."""
    PARKED = "Parked"
    """Somebody set `replicas` to 0, and whoever calls is refused."""
    # On the way.
    RUNNING = "Running"
    STARTING = "Starting"
    SUSPENDED = "Suspended"
    QUEUED = "Queued"
    """Kueue has not admitted the job yet."""
    ROLLING_OUT = "RollingOut"
    MODEL_RESOLVING = "ModelResolving"
    MODEL_DOWNLOADING = "ModelDownloading"
    MODEL_LOADING = "ModelLoading"
    STEP_NOT_READY = "StepNotReady"
    ROUTE_PENDING = "RoutePending"
    PODS_NOT_READY = "PodsNotReady"
    NO_ENDPOINTS = "NoEndpoints"
    SCALING_UP = "ScalingUp"
    WAKING = "Waking"
    NO_LOAD_DATA = "NoLoadData"
    AT_MAX_REPLICAS = "AtMaxReplicas"
    NO_FREE_CAPACITY = "NoFreeCapacity"
    NO_LATENCY_DATA = "NoLatencyData"
    ROWS_NOT_CHECKED = "RowsNotChecked"
    WAITING_FOR_CLEANUP = "WaitingForCleanup"
    UPGRADE_PENDING = "UpgradePending"
    UPGRADING = "Upgrading"
    SETTING_REMOVED = "SettingRemoved"
    SCALED_UP = "ScaledUp"
    SCALED_DOWN = "ScaledDown"
    # Somebody must act.
    INVALID_SPEC = "InvalidSpec"
    NOT_ALLOWED = "NotAllowed"
    NAME_TAKEN = "NameTaken"
    NO_WAITING_ROOM = "NoWaitingRoom"
    APPLY_FAILED = "ApplyFailed"
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    MODEL_UNRESOLVED = "ModelUnresolved"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    RUNTIME_CRASHED = "RuntimeCrashed"
    PROXY_CRASHED = "ProxyCrashed"
    CONTAINER_CRASHED = "ContainerCrashed"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROUTE_REFUSED = "RouteRefused"
    GATEWAY_API_MISSING = "GatewayApiMissing"
    SCALER_MISSING = "ScalerMissing"
    SCALER_FAILS = "ScalerFails"
    OBJECTIVE_UNATTAINABLE = "ObjectiveUnattainable"
    ROWS_MIXED = "RowsMixed"
    ANOTHER_OPERATOR = "AnotherOperator"
    ANOTHER_SCALER = "AnotherScaler"
    CHANGED_AT_ADMISSION = "ChangedAtAdmission"
    FIELD_RENAMED = "FieldRenamed"
    UPGRADE_FAILED = "UpgradeFailed"
    INVALID_GRAPH = "InvalidGraph"
    CYCLE = "Cycle"
    SIGNATURE_MISMATCH = "SignatureMismatch"
    STEP_MISSING = "StepMissing"
    JOB_FAILED = "JobFailed"
    JOB_GONE = "JobGone"
    """It was deleted before its end was told."""
    KUBERAY_MISSING = "KubeRayMissing"


ScalingReason = Literal[Reason.FOLLOWING_LOAD, Reason.NO_LOAD_DATA]
"""What the law of scaling says of a service, and its status shows: replicas follow the load, or it is not known."""

FAILURES = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NOT_ALLOWED,
        Reason.NAME_TAKEN,
        Reason.NO_WAITING_ROOM,
        Reason.APPLY_FAILED,
        Reason.INSUFFICIENT_GPU,
        Reason.UNSCHEDULABLE,
        Reason.PODS_REFUSED,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_INVALID,
        Reason.MODEL_UNRESOLVED,
        Reason.MODEL_DOWNLOAD_FAILED,
        Reason.RUNTIME_CRASHED,
        Reason.PROXY_CRASHED,
        Reason.CONTAINER_CRASHED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.ROLLOUT_PAUSED,
        Reason.ROUTE_REFUSED,
        Reason.GATEWAY_API_MISSING,
        Reason.SCALER_MISSING,
        Reason.SCALER_FAILS,
        Reason.OBJECTIVE_UNATTAINABLE,
        Reason.ROWS_MIXED,
        Reason.ANOTHER_OPERATOR,
        Reason.ANOTHER_SCALER,
        Reason.CHANGED_AT_ADMISSION,
        Reason.FIELD_RENAMED,
        Reason.UPGRADE_FAILED,
        Reason.INVALID_GRAPH,
        Reason.CYCLE,
        Reason.SIGNATURE_MISMATCH,
        Reason.STEP_MISSING,
        Reason.JOB_FAILED,
        Reason.JOB_GONE,
        Reason.KUBERAY_MISSING,
    }
)
"""Reasons that wait for a person; their events are warnings."""
