"""Batching, queueing and scaling of a service."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import KIB, MIB, PROXY, RUNTIME, TIB, Env, SettingsSection
from shoal_schema.fields.rules import (
    Custom,
    In,
    Matches,
    Not,
    Rule,
    any_of,
    at_most,
    requires,
    requires_value,
)
from shoal_schema.interfaces.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.resource.passthrough import HEADER_NAME, SET
from shoal_schema.resource.scalers import ScalersSpec


class BatchingPolicy(StrEnum):
    """Rule that forms batches."""

    ADAPTIVE = "Adaptive"
    FIXED = "Fixed"
    NONE = "None"


Buckets = Annotated[
    dict[str, Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31 - 1)], ...], Meta(min_length=1, max_length=64)]],
    Meta(max_length=64),
]
Weights = Annotated[dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]], Meta(max_length=256)]


class RowChecks(StrEnum):
    """Verification that every row of a shared batch gets its own result."""

    AUTO = "Auto"
    OFF = "Off"


class BatchingSpec(SettingsSection, frozen=True):
    """How requests are combined into batches."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Custom(
                "!has(self.allowedBatchSizes) || self.allowedBatchSizes.size() == 0"
                " || (self.maxBatchSize in self.allowedBatchSizes"
                " && self.allowedBatchSizes.all(size, size <= self.maxBatchSize))",
                lambda batching: (
                    max(batching.allowed_batch_sizes or (), default=batching.max_batch_size) == batching.max_batch_size
                ),
            ),
            "the largest of allowedBatchSizes must be maxBatchSize",
            "allowedBatchSizes",
        ),
        requires_value("maxDelayMilliseconds", "policy", "Fixed", why="Adaptive never waits while the runtime is idle"),
        requires_value("latencyObjectiveMilliseconds", "policy", "Adaptive"),
    )

    # When a batch is closed.
    policy: Annotated[
        BatchingPolicy,
        Meta(
            description="`Adaptive` measures how long batches take, and fills them while the runtime is busy."
            " `Fixed` closes a batch when it is full or `maxDelayMilliseconds` old; `None` runs each"
            " request alone."
        ),
        Env("SHOAL_BATCHING_POLICY", PROXY),
    ] = BatchingPolicy.ADAPTIVE
    latency_objective_milliseconds: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=3_600_000,
                description=(
                    "Target response time; a shorter timeout of the client takes precedence. Batches are sized to "
                    "meet it, and requests that would miss it are rejected at once, with 503 and `Retry-After`. "
                    "Default: none."
                ),
            ),
            Env("SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", PROXY),
        ]
        | None
    ) = None
    # How large it may be, and which requests may share it.
    max_batch_size: Annotated[
        int,
        Meta(ge=1, le=65536, description="Maximum number of rows in a batch."),
        Env("SHOAL_BATCHING_MAX_BATCH_SIZE", PROXY, RUNTIME),
    ] = 32
    allowed_batch_sizes: (
        Annotated[
            tuple[Annotated[int, Meta(ge=1, le=65536)], ...],
            Meta(
                max_length=64,
                extra_json_schema=SET,
                description="Batch sizes that the runtime warms up and pads to; the largest must be"
                " `maxBatchSize`. Default: any size on a CPU, powers of two on CUDA.",
            ),
            Env("SHOAL_BATCHING_ALLOWED_BATCH_SIZES", RUNTIME),
        ]
        | None
    ) = None
    max_delay_milliseconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60_000,
            description="With `policy: Fixed`, time that a batch waits for more rows while the runtime is idle.",
        ),
        Env("SHOAL_BATCHING_MAX_DELAY_MS", PROXY),
    ] = 0.0
    pad_buckets: (
        Annotated[
            Buckets,
            Meta(
                description="Lengths to pad rows to, by input of the model (`tokens: [64, 128, 256]`), instead"
                " of those in the model's metadata. Rows of different buckets never share a batch; only"
                " inputs with a padded axis can have buckets."
            ),
            Env(
                "SHOAL_BATCHING_PAD_BUCKETS", PROXY, allowed='a JSON object of lists of lengths, {"tokens": [64, 128]}'
            ),
        ]
        | None
    ) = None
    # How batches run.
    in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Batches that a foreign runtime executes concurrently; one more full batch is sent ahead."
            " Shoal's own runtime executes one batch per instance (`runtime.instances`).",
        ),
        Env("SHOAL_BATCHING_IN_FLIGHT", PROXY),
    ] = 1
    idempotent: Annotated[
        bool,
        Meta(
            description="Whether a request may run twice: a batch is then retried once if the runtime dies while"
            " it runs."
        ),
        Env("SHOAL_BATCHING_IDEMPOTENT", PROXY),
    ] = False
    coalesce_identical: Annotated[
        bool,
        Meta(description="Whether equal rows of queued requests run once."),
        Env("SHOAL_BATCHING_COALESCE", PROXY),
    ] = False
    row_checks: Annotated[
        RowChecks,
        Meta(
            description="`Auto` runs rows of shared batches again while the device is idle; if a row got another"
            " row's result, each batch then holds one request (condition `RowsIndependent`). `Off`"
            " suits models with side effects, or with results that depend on more than their inputs."
        ),
        Env("SHOAL_BATCHING_ROW_CHECKS", PROXY),
    ] = RowChecks.AUTO


class QueueSpec(SettingsSection, frozen=True):
    """Queue of one pod. Requests beyond its limits are rejected with 503 and `Retry-After`."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        requires("fairShareWeights", "fairShareHeader", "the weights belong to values of that header"),
        Rule(
            Not(Matches("fairShareHeader", OWN_HEADERS_PATTERN)),
            f"fairShareHeader must not name a header that the connection sets: {', '.join(sorted(OWN_HEADERS))}",
            "fairShareHeader",
        ),
    )

    # Limits of the queue.
    max_rows: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000_000,
                description="Maximum number of queued rows. Default: four batches of `batching.maxBatchSize`, at"
                " least 1024.",
            ),
            Env("SHOAL_QUEUE_MAX_ROWS", PROXY),
        ]
        | None
    ) = None
    max_bytes: Annotated[
        int, Meta(ge=KIB, le=TIB, description="Maximum size of queued requests."), Env("SHOAL_QUEUE_MAX_BYTES", PROXY)
    ] = 256 * MIB
    timeout_milliseconds: Annotated[
        float,
        Meta(ge=1, le=3_600_000, description="Timeout of requests that do not set one."),
        Env("SHOAL_QUEUE_TIMEOUT_MS", PROXY),
    ] = 60_000.0
    max_body_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of a request body; larger ones are rejected with 413."),
        Env("SHOAL_PROXY_MAX_BODY_BYTES", PROXY),
    ] = 64 * MIB
    # Order of the queue.
    priority_ageing_milliseconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600_000,
            description=(
                "Delay per priority level: a request with `x-shoal-priority: N` (0 to 9) is queued as if it had "
                "arrived N times this delay later."
            ),
        ),
        Env("SHOAL_QUEUE_PRIORITY_AGEING_MS", PROXY),
    ] = 1000.0
    fair_share_header: (
        Annotated[
            str,
            Meta(
                pattern=HEADER_NAME,
                max_length=128,
                description=(
                    "Request header that identifies a client for fair sharing. Clients share the runtime by "
                    "weight, regardless of how many requests each sends."
                ),
            ),
            Env("SHOAL_QUEUE_FAIR_SHARE_HEADER", PROXY, allowed="a header name"),
        ]
        | None
    ) = None
    fair_share_weights: (
        Annotated[
            Weights,
            Meta(description="Weights by value of `fairShareHeader`. Default: 1."),
            Env("SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", PROXY, allowed="a JSON object of weights above 0"),
        ]
        | None
    ) = None


class ScalingMode(StrEnum):
    """Controllers that may set `replicas`."""

    INTERNAL = "Internal"
    EXTERNAL = "External"


class ScalingSpec(SettingsSection, frozen=True, kw_only=True):
    """Autoscaling. Without it `replicas` is set by hand."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        at_most("minReplicas", "maxReplicas"),
        requires_value("external", "mode", "External", why="the operator does not scale beside another autoscaler"),
        Rule(
            any_of(In("mode", ("Internal",)), Not(In("minReplicas", (0,)))),
            "minReplicas must be at least 1 with mode External: without pods an autoscaler has no metrics",
            "minReplicas",
        ),
        requires_value("targetQueueDepth", "mode", "Internal", why="another autoscaler has its own target"),
        requires_value("scaleToZeroDelaySeconds", "minReplicas", 0, why="otherwise the last pod is never removed"),
    )

    mode: Annotated[
        ScalingMode,
        Meta(
            description=(
                "Component that sets `replicas`. `Internal`: the operator, according to the load that pods "
                "report. `External`: an HPA, KEDA or another client of `/scale`; the operator then neither "
                "changes nor limits `replicas`."
            )
        ),
    ] = ScalingMode.INTERNAL
    external: (
        Annotated[
            ScalersSpec,
            Meta(
                description="With mode `External`: an autoscaler that the operator creates with `minReplicas` and"
                " `maxReplicas`. Default: none; create it yourself."
            ),
        ]
        | None
    ) = None
    # Bounds.
    min_replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Minimum number of pods. With 0 a service without requests runs no pods, and the activator"
            " (chart value `activator.enabled`) holds the next requests while a pod starts. At 0 replicas in"
            " mode `External` requests are rejected.",
        ),
    ] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of pods.")]
    # Targets.
    scale_to_zero_delay_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=2_592_000,
                description="With `minReplicas` 0: time without requests after which the last pod is removed. It"
                " should exceed the start time of a pod. Default: 1800.",
            ),
        ]
        | None
    ) = None
    target_queue_depth: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000_000,
                description=(
                    "Target number of queued and running rows per pod. Default with a latency objective: derived "
                    "from measured batch times; otherwise two full batches for each that runs at a time."
                ),
            ),
        ]
        | None
    ) = None


def queue_rows(queue: QueueSpec, batching: BatchingSpec) -> int:
    """Return the limit of queued rows, which grows with the batch size."""
    return max(1024, 4 * batching.max_batch_size) if queue.max_rows is None else queue.max_rows


def scale_to_zero_delay_s(scaling: ScalingSpec) -> float:
    """Return the time without requests after which the last pod is removed."""
    return 1800.0 if scaling.scale_to_zero_delay_seconds is None else scaling.scale_to_zero_delay_seconds
