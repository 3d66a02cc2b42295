"""Types, statuses and reasons of conditions; monitoring may depend on them."""

from enum import StrEnum
from typing import Literal


class ConditionType(StrEnum):
    """Types of a service's conditions."""

    # Conditions that every service has.
    READY = "Ready"
    """The newest spec is served, and its route, scaling and peers work."""
    AVAILABLE = "Available"
    """At least one pod serves requests."""
    PROGRESSING = "Progressing"
    """Pods of the newest spec are complete or starting."""
    MODEL_LOADED = "ModelLoaded"
    """A pod of the newest spec has loaded and warmed up the model."""
    GRAPH_VALID = "GraphValid"
    """Of graphs, instead of `ModelLoaded`: the steps' models respond and accept their inputs."""
    MODEL_RESOLVED = "ModelResolved"
    """A moving name of a model is resolved to a version; set only for moving names."""
    # Access and scaling.
    ROUTE_READY = "RouteReady"
    """Clients outside the cluster reach the service."""
    SCALING_ACTIVE = "ScalingActive"
    """Replicas follow the load."""
    SCALING_LIMITED = "ScalingLimited"
    """The load needs more replicas than allowed; set only while it does."""
    ACTIVATOR_READY = "ActivatorReady"
    """Requests for a service at zero replicas are held; set only while they would not be."""
    # Quality of responses.
    OBJECTIVE_ATTAINABLE = "ObjectiveAttainable"
    """A request in a batch of its own meets the latency objective."""
    ROWS_INDEPENDENT = "RowsIndependent"
    """Each row of a shared batch gets its own result; set once rows were run again. It does not change `Ready`."""
    SAME_PRECISION = "SamePrecision"
    """All pods use one precision; set once runtimes chose one by measurement. It does not change `Ready`."""
    # Set only while something is wrong, or around an upgrade.
    SOLE_OPERATOR = "SoleOperator"
    """No other install of the operator manages the service; set only while one does."""
    PEERS_FOUND = "PeersFound"
    """Replicas find their peers; set only while they do not. It does not change `Ready`."""
    CANDIDATE_JUDGED = "CandidateJudged"
    """No candidate awaits a verdict; set for services with `rollout.strategy` Shadow or Canary."""
    UPGRADED = "Upgraded"
    """Pods have this operator's images and template; set only around an upgrade."""
    SPEC_READ = "SpecRead"
    """Every field of the spec is read; set only while one is not."""


class BatchConditionType(StrEnum):
    """Types of a batch job's conditions: those of a Kubernetes Job, and `Running`."""

    COMPLETE = "Complete"
    """All rows have a result or an error."""
    FAILED = "Failed"
    """The job ended before all rows were done, and is not retried."""
    SUSPENDED = "Suspended"
    """No pods run until the job is resumed."""
    RUNNING = "Running"
    """A pod scores rows."""


class Status(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reason of a condition, in one word."""

    # The desired state.
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
    PRECISION_CHOSEN = "PrecisionChosen"
    SCALED_TO_ZERO = "ScaledToZero"
    """No pod runs, and the activator holds requests."""
    NO_CANDIDATE = "NoCandidate"
    """The newest spec is the stable revision."""
    PARKED = "Parked"
    """`replicas` is 0 and requests are rejected."""
    # In progress.
    RUNNING = "Running"
    STARTING = "Starting"
    SUSPENDED = "Suspended"
    QUEUED = "Queued"
    """Kueue has not admitted the job yet."""
    ROLLING_OUT = "RollingOut"
    CANDIDATE_STARTING = "CandidateStarting"
    COMPARING = "Comparing"
    """The candidate runs rows in one of the steps."""
    PROMOTING = "Promoting"
    """The candidate passed, and the stable pods are being replaced."""
    CANDIDATE_WAITING = "CandidateWaiting"
    """The service has no pods or no requests to compare with."""
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
    # A user must act.
    # The spec, or what follows from it, is rejected.
    INVALID_SPEC = "InvalidSpec"
    NOT_ALLOWED = "NotAllowed"
    NAME_TAKEN = "NameTaken"
    NO_ACTIVATOR = "NoActivator"
    APPLY_FAILED = "ApplyFailed"
    # Pods cannot start.
    INSUFFICIENT_GPU = "InsufficientGPU"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    # The model, or a container, fails.
    MODEL_UNRESOLVED = "ModelUnresolved"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    RUNTIME_CRASHED = "RuntimeCrashed"
    PROXY_CRASHED = "ProxyCrashed"
    CONTAINER_CRASHED = "ContainerCrashed"
    # Rollout, route and scaling.
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ROLLOUT_PAUSED = "RolloutPaused"
    CANDIDATE_FAILED = "CandidateFailed"
    """The candidate failed the comparison and was removed or paused."""
    CANDIDATE_PAUSED = "CandidatePaused"
    """A user paused the rollout."""
    SIGNATURE_CHANGED = "SignatureChanged"
    OUTPUT_UNKNOWN = "OutputUnknown"
    """`rollout.compare` names an output that does not exist."""
    CHANGED_TOGETHER = "ChangedTogether"
    """The spec changes both what a candidate compares and what it cannot."""
    CANDIDATE_UNSUPPORTED = "CandidateUnsupported"
    """The stable pods cannot compare: they are of an older release, or the name is too long."""
    ROUTE_REFUSED = "RouteRefused"
    GATEWAY_API_MISSING = "GatewayApiMissing"
    SCALER_MISSING = "ScalerMissing"
    SCALER_FAILS = "ScalerFails"
    OBJECTIVE_UNATTAINABLE = "ObjectiveUnattainable"
    # Results, and conflicting writers.
    ROWS_MIXED = "RowsMixed"
    PRECISIONS_DIFFER = "PrecisionsDiffer"
    ANOTHER_OPERATOR = "AnotherOperator"
    ANOTHER_SCALER = "AnotherScaler"
    CHANGED_AT_ADMISSION = "ChangedAtAdmission"
    FIELD_RENAMED = "FieldRenamed"
    RULE_BROKEN = "RuleBroken"
    UPGRADE_FAILED = "UpgradeFailed"
    # Graphs.
    INVALID_GRAPH = "InvalidGraph"
    CYCLE = "Cycle"
    SIGNATURE_MISMATCH = "SignatureMismatch"
    STEP_MISSING = "StepMissing"
    # Batch jobs.
    JOB_FAILED = "JobFailed"
    JOB_GONE = "JobGone"
    """The Job was deleted before its result was recorded."""
    KUBERAY_MISSING = "KubeRayMissing"


ScalingReason = Literal[Reason.FOLLOWING_LOAD, Reason.NO_LOAD_DATA]
"""Reasons of `ScalingActive` that the autoscaler returns."""

FAILURES = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.NOT_ALLOWED,
        Reason.NAME_TAKEN,
        Reason.NO_ACTIVATOR,
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
        Reason.CANDIDATE_FAILED,
        Reason.CANDIDATE_PAUSED,
        Reason.SIGNATURE_CHANGED,
        Reason.OUTPUT_UNKNOWN,
        Reason.CHANGED_TOGETHER,
        Reason.CANDIDATE_UNSUPPORTED,
        Reason.ROUTE_REFUSED,
        Reason.GATEWAY_API_MISSING,
        Reason.SCALER_MISSING,
        Reason.SCALER_FAILS,
        Reason.OBJECTIVE_UNATTAINABLE,
        Reason.ROWS_MIXED,
        Reason.PRECISIONS_DIFFER,
        Reason.ANOTHER_OPERATOR,
        Reason.ANOTHER_SCALER,
        Reason.CHANGED_AT_ADMISSION,
        Reason.FIELD_RENAMED,
        Reason.RULE_BROKEN,
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
"""Reasons that last until a user acts; their Events are Warnings."""
