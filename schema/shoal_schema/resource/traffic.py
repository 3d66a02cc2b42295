"""How requests wait, become batches, and get more pods."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import KIB, MIB, PROXY, RUNTIME, TIB, Env, Rule, Section
from shoal_schema.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.resource.passthrough import HEADER_NAME, SET
from shoal_schema.resource.scalers import ScalersSpec
from shoal_schema.stay import MAX_S as MAX_STAY_S


class BatchingPolicy(StrEnum):
    """How batches are formed."""

    ADAPTIVE = "Adaptive"
    FIXED = "Fixed"
    NONE = "None"


Buckets = Annotated[
    dict[str, Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31 - 1)], ...], Meta(min_length=1, max_length=64)]],
    Meta(max_length=64),
]
Weights = Annotated[dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]], Meta(max_length=256)]


class RowChecks(StrEnum):
    """Whether rows are run again to verify that shared batches give each its own result."""

    AUTO = "Auto"
    OFF = "Off"


class BatchingSpec(Section, frozen=True):
    """How requests become batches."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.allowedBatchSizes) || (self.maxBatchSize in self.allowedBatchSizes"
            " && self.allowedBatchSizes.all(size, size <= self.maxBatchSize))",
            "the largest of allowedBatchSizes must be maxBatchSize",
            ".allowedBatchSizes",
        ),
        Rule(
            "self.policy == 'Fixed' || self.maxDelayMilliseconds == 0",
            "maxDelayMilliseconds works with policy Fixed only; Adaptive never waits while the runtime is idle",
            ".maxDelayMilliseconds",
        ),
        Rule(
            "self.policy == 'Adaptive' || !has(self.latencyObjectiveMilliseconds)",
            "latencyObjectiveMilliseconds works with policy Adaptive only",
            ".latencyObjectiveMilliseconds",
        ),
    )

    policy: Annotated[
        BatchingPolicy,
        Meta(
            description="`Adaptive` learns how long batches take, and fills them while the runtime is busy; `Fixed`"
            " closes a batch when it is full or `maxDelayMilliseconds` old; `None` runs each request alone."
        ),
        Env("SHOAL_BATCHING_POLICY", PROXY),
    ] = BatchingPolicy.ADAPTIVE
    latency_objective_milliseconds: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=3_600_000,
                description="Within what time answers should leave. Batches are as full as it allows, and what cannot"
                " make it is refused at once, with 503 and `Retry-After`. A caller's time-out counts where it is"
                " shorter. Default: as soon as possible, and nothing is refused for being late.",
            ),
            Env("SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", PROXY),
        ]
        | None
    ) = None
    max_batch_size: Annotated[
        int,
        Meta(ge=1, le=65536, description="Rows in one batch at most."),
        Env("SHOAL_BATCHING_MAX_BATCH_SIZE", PROXY, RUNTIME),
    ] = 32
    allowed_batch_sizes: (
        Annotated[
            tuple[Annotated[int, Meta(ge=1, le=65536)], ...],
            Meta(
                max_length=64,
                extra_json_schema=SET,
                description="Batch sizes that the runtime warms and pads up to; the largest is `maxBatchSize`."
                " Default: any size on a CPU, powers of two on CUDA.",
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
            description="With policy `Fixed`: how long a batch may wait for more rows while the runtime is idle.",
        ),
        Env("SHOAL_BATCHING_MAX_DELAY_MS", PROXY),
    ] = 0.0
    pad_buckets: (
        Annotated[
            Buckets,
            Meta(
                description="By input, the lengths to pad its rows to (`tokens: [64, 128, 256]`), instead of those in"
                " the model's own metadata; rows of different buckets never share a batch. Only of inputs that the"
                " model pads."
            ),
            Env(
                "SHOAL_BATCHING_PAD_BUCKETS", PROXY, allowed='a JSON object of lists of lengths, {"tokens": [64, 128]}'
            ),
        ]
        | None
    ) = None
    in_flight: Annotated[
        int,
        Meta(ge=1, le=64, description="Batches the runtime executes at a time; one more full batch is sent ahead."),
        Env("SHOAL_BATCHING_IN_FLIGHT", PROXY),
    ] = 1
    idempotent: Annotated[
        bool,
        Meta(
            description="Running a request twice does no harm: a batch whose runtime died meanwhile is sent once more."
        ),
        Env("SHOAL_BATCHING_IDEMPOTENT", PROXY),
    ] = False
    coalesce_identical: Annotated[
        bool, Meta(description="Identical requests that wait share one row."), Env("SHOAL_BATCHING_COALESCE", PROXY)
    ] = False
    row_checks: Annotated[
        RowChecks,
        Meta(
            description="`Auto`: rows of shared batches are run again while the device is idle; once a row's result"
            " turns out to be another row's, each batch holds one request (the condition `RowsIndependent`). `Off`: no"
            " row is run twice, for models whose results follow something besides their inputs, or that act on others."
        ),
        Env("SHOAL_BATCHING_ROW_CHECKS", PROXY),
    ] = RowChecks.AUTO


class QueueSpec(Section, frozen=True):
    """How much work may wait in one pod, and who is next; more is answered with 503 and `Retry-After`."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.fairShareWeights) || has(self.fairShareHeader)",
            "fairShareWeights need fairShareHeader, the header whose values they weigh",
            ".fairShareWeights",
        ),
        Rule(
            f"!has(self.fairShareHeader) || !self.fairShareHeader.matches('{OWN_HEADERS_PATTERN}')",
            f"fairShareHeader must not name a header of the connection's own: {', '.join(sorted(OWN_HEADERS))}",
            ".fairShareHeader",
        ),
    )

    max_rows: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1_000_000,
                description="Rows that may wait; default: four batches of `batching.maxBatchSize`, and at least 1024.",
            ),
            Env("SHOAL_QUEUE_MAX_ROWS", PROXY),
        ]
        | None
    ) = None
    max_bytes: Annotated[
        int, Meta(ge=KIB, le=TIB, description="Bytes that may wait."), Env("SHOAL_QUEUE_MAX_BYTES", PROXY)
    ] = 256 * MIB
    timeout_milliseconds: Annotated[
        float,
        Meta(ge=1, le=3_600_000, description="Deadline of a request that names none."),
        Env("SHOAL_QUEUE_TIMEOUT_MS", PROXY),
    ] = 60_000.0
    max_body_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Bytes of the largest request body; a larger one is answered with 413."),
        Env("SHOAL_PROXY_MAX_BODY_BYTES", PROXY),
    ] = 64 * MIB
    priority_ageing_milliseconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600_000,
            description="A request with `x-shoal-priority: N` (0 to 9) waits as if it had come N times this much"
            " later.",
        ),
        Env("SHOAL_QUEUE_PRIORITY_AGEING_MS", PROXY),
    ] = 1000.0
    fair_share_header: (
        Annotated[
            str,
            Meta(
                pattern=HEADER_NAME,
                max_length=128,
                description="Callers who differ in this header share the runtime by weight, however much each of them"
                " asks.",
            ),
            Env("SHOAL_QUEUE_FAIR_SHARE_HEADER", PROXY, allowed="a header name"),
        ]
        | None
    ) = None
    fair_share_weights: (
        Annotated[
            Weights,
            Meta(description="Weight of each value of `fairShareHeader`; others have 1."),
            Env("SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", PROXY, allowed="a JSON object of weights above 0"),
        ]
        | None
    ) = None


class ScalingMode(StrEnum):
    """Who writes `replicas`."""

    INTERNAL = "Internal"
    EXTERNAL = "External"


class ScalingSpec(Section, frozen=True, kw_only=True):
    """Replicas that follow the load. Leave it out to set `replicas` by hand."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.minReplicas <= self.maxReplicas", "minReplicas must not be larger than maxReplicas", ".minReplicas"),
        Rule(
            "!has(self.external) || self.mode == 'External'",
            "external works with mode External only: the operator does not scale beside another autoscaler",
            ".external",
        ),
        Rule(
            "self.mode == 'Internal' || self.minReplicas > 0",
            "minReplicas must be at least 1 with mode External: without pods there is nothing to measure, and the"
            " waiting room holds requests of services that the operator itself scales",
            ".minReplicas",
        ),
        Rule(
            "self.mode == 'Internal' || !has(self.targetQueueDepth)",
            "targetQueueDepth works with mode Internal only: whatever drives /scale has a target of its own",
            ".targetQueueDepth",
        ),
        Rule(
            "self.minReplicas == 0 || !has(self.scaleToZeroDelaySeconds)",
            "scaleToZeroDelaySeconds works with minReplicas 0 only: with more the last pod never goes",
            ".scaleToZeroDelaySeconds",
        ),
    )

    mode: Annotated[
        ScalingMode,
        Meta(
            description="Who writes `replicas`: `Internal` is the operator, by what the pods say of their load;"
            " `External` is an HPA, KEDA or whatever else drives `/scale`: then the operator never does, nor bounds it."
        ),
    ] = ScalingMode.INTERNAL
    external: (
        Annotated[
            ScalersSpec,
            Meta(
                description="With `mode` `External`: an autoscaler that the operator writes, beside `minReplicas` and"
                " `maxReplicas`. Default: none; whoever drives `/scale` is made elsewhere."
            ),
        ]
        | None
    ) = None
    min_replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Never fewer pods than this. With 0 a service that nobody calls sleeps without pods: the"
            " waiting room holds the next requests while a pod starts. That needs the chart's `waitingRoom.enabled`."
            " With `mode: External` it holds nothing: at 0 replicas, whoever set them, callers are refused.",
        ),
    ] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=10_000, description="Never more pods than this.")]
    scale_to_zero_delay_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=2_592_000,
                description="With `minReplicas` 0: how long nobody must have called before the last pod goes. Longer"
                " than starting one takes, or callers pay for it again and again. Default: 1800.",
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
                description="Rows that one pod should have, waiting and running. Default: with a latency objective it"
                " is learned from what batches take; without one, two full batches.",
            ),
        ]
        | None
    ) = None


class RolloutSpec(Section, frozen=True):
    """How pods are replaced when the spec changes."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSurge > 0 || self.maxUnavailable > 0",
            "maxSurge and maxUnavailable cannot both be 0: no pod could ever be replaced",
            ".maxSurge",
        ),
        Rule(
            "self.minReadySeconds < self.progressDeadlineSeconds",
            "minReadySeconds must be less than progressDeadlineSeconds",
            ".minReadySeconds",
        ),
    )

    max_surge: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Pods above the wanted number during a rollout. With 1 a spare GPU is needed; with 0 and"
            " `maxUnavailable` 1 a pod leaves before its successor comes.",
        ),
    ] = 1
    max_unavailable: Annotated[int, Meta(ge=0, le=1000, description="Pods that may be missing during a rollout.")] = 0
    progress_deadline_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400,
            description="A rollout without progress for this long is reported as failed. Longer than pulling the"
            " image and loading the model.",
        ),
    ] = 600
    min_ready_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="A new pod must have been ready for so long before the next one is replaced; until then it"
            " serves, and does not count as available.",
        ),
    ] = 0
    drain_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="A pod that stops keeps accepting requests this long, until every load balancer knows.",
        ),
        Env("SHOAL_PROXY_DRAIN_DELAY_S", PROXY, unset=0.0),
    ] = 5.0
    drain_timeout_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="Time for a stopping pod to finish what it accepted."),
        Env("SHOAL_PROXY_DRAIN_TIMEOUT_S", PROXY),
    ] = 60.0
    replacement_timeout_seconds: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_STAY_S,
                description="A stopping pod keeps serving while no other pod is ready and a replacement is on its way,"
                " at most this long: draining a node then costs a service of one replica no request. The pods' grace"
                " period contains it. Default: 120, and 0 with containers that stop at once (`runtime.port`,"
                " `pod.containers`).",
            ),
        ]
        | None
    ) = None


def queue_rows(queue: QueueSpec, batching: BatchingSpec) -> int:
    """Return how many rows may wait: the bound follows a larger batch, so that setting one number is enough."""
    return max(1024, 4 * batching.max_batch_size) if queue.max_rows is None else queue.max_rows


def scale_to_zero_delay_s(scaling: ScalingSpec) -> float:
    """Return how long nobody must have called before the last pod goes."""
    return 1800.0 if scaling.scale_to_zero_delay_seconds is None else scaling.scale_to_zero_delay_seconds
