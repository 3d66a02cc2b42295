"""How requests wait, become batches, and get more pods."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shoal_operator.api.fields import HEADER_NAME, Json, Rule, spec_field


class BatchingPolicy(StrEnum):
    """How batches are formed."""

    ADAPTIVE = "Adaptive"
    FIXED = "Fixed"
    NONE = "None"


BUCKETS: Json = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {
        "type": "array",
        "minItems": 1,
        "maxItems": 64,
        "items": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
    },
}
WEIGHTS: Json = {
    "type": "object",
    "maxProperties": 256,
    "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSpec:
    """How requests become batches."""

    RULES: ClassVar = (
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

    policy: BatchingPolicy = spec_field(
        "`Adaptive` learns how long batches take, and fills them while the runtime is busy; `Fixed` closes a batch when"
        " it is full or `maxDelayMilliseconds` old; `None` runs each request alone.",
        default=BatchingPolicy.ADAPTIVE,
        env="SHOAL_BATCHING_POLICY",
        containers=("proxy",),
    )
    latency_objective_milliseconds: int | None = spec_field(
        "Within what time answers should leave. Batches are as full as it allows, and what cannot make it is refused"
        " at once, with 503 and `Retry-After`. Default: as soon as possible, and nothing is refused for being late.",
        default=None,
        minimum=1,
        maximum=3_600_000,
        env="SHOAL_BATCHING_LATENCY_OBJECTIVE_MS",
        containers=("proxy",),
    )

    max_batch_size: int = spec_field(
        "Rows in one batch at most.",
        default=32,
        minimum=1,
        maximum=65536,
        env="SHOAL_BATCHING_MAX_BATCH_SIZE",
        containers=("proxy", "runtime"),
    )
    allowed_batch_sizes: tuple[int, ...] | None = spec_field(
        "Batch sizes that the runtime warms and pads up to; the largest is `maxBatchSize`. Default:"
        " any size on a CPU, powers of two on CUDA.",
        default=None,
        minimum=1,
        maximum=65536,
        max_items=64,
        is_set=True,
        env="SHOAL_BATCHING_ALLOWED_BATCH_SIZES",
        containers=("runtime",),
    )
    max_delay_milliseconds: int = spec_field(
        "With policy `Fixed`: how long a batch may wait for more rows while the runtime is idle.",
        default=0,
        minimum=0,
        maximum=60000,
        env="SHOAL_BATCHING_MAX_DELAY_MS",
        containers=("proxy",),
    )
    pad_buckets: Json | None = spec_field(
        "By input, the lengths to pad its rows to (`tokens: [64, 128, 256]`), instead of those in the model's own"
        " metadata; rows of different buckets never share a batch. Only of inputs that the model pads.",
        default=None,
        raw=BUCKETS,
        env="SHOAL_BATCHING_PAD_BUCKETS",
        containers=("proxy",),
    )
    in_flight: int = spec_field(
        "Batches the runtime executes at a time; one more full batch is sent ahead.",
        default=1,
        minimum=1,
        maximum=64,
        env="SHOAL_BATCHING_IN_FLIGHT",
        containers=("proxy",),
    )
    idempotent: bool = spec_field(
        "Running a request twice does no harm: a batch whose runtime died meanwhile is sent once more.",
        default=False,
        env="SHOAL_BATCHING_IDEMPOTENT",
        containers=("proxy",),
    )
    coalesce_identical: bool = spec_field(
        "Identical requests in flight share one row.",
        default=False,
        env="SHOAL_BATCHING_COALESCE",
        containers=("proxy",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """How much work may wait in one pod, and who is next; more is answered with 503 and `Retry-After`."""

    RULES: ClassVar = (
        Rule(
            "!has(self.fairShareWeights) || has(self.fairShareHeader)",
            "fairShareWeights need fairShareHeader, the header whose values they weigh",
            ".fairShareWeights",
        ),
    )

    max_items: int = spec_field(
        "Rows that may wait.",
        default=1024,
        minimum=1,
        maximum=1_000_000,
        env="SHOAL_QUEUE_MAX_ROWS",
        containers=("proxy",),
    )
    max_bytes: int = spec_field(
        "Bytes that may wait.",
        default=256 * 2**20,
        minimum=1024,
        maximum=2**40,
        env="SHOAL_QUEUE_MAX_BYTES",
        containers=("proxy",),
    )
    timeout_milliseconds: int = spec_field(
        "Deadline of a request that names none.",
        default=60000,
        minimum=1,
        maximum=3_600_000,
        env="SHOAL_QUEUE_TIMEOUT_MS",
        containers=("proxy",),
    )
    max_body_bytes: int = spec_field(
        "Largest request body.",
        default=64 * 2**20,
        minimum=1024,
        maximum=2**40,
        env="SHOAL_PROXY_MAX_BODY_BYTES",
        containers=("proxy",),
    )
    priority_ageing_milliseconds: int = spec_field(
        "A request with `x-shoal-priority: N` (0 to 9) waits as if it had come N times this much later.",
        default=1000,
        minimum=0,
        maximum=3_600_000,
        env="SHOAL_QUEUE_PRIORITY_AGEING_MS",
        containers=("proxy",),
    )
    fair_share_header: str | None = spec_field(
        "Callers who differ in this header share the runtime by weight, however much each of them asks.",
        default=None,
        pattern=HEADER_NAME,
        max_length=128,
        env="SHOAL_QUEUE_FAIR_SHARE_HEADER",
        containers=("proxy",),
    )
    fair_share_weights: Json | None = spec_field(
        "Weight of each value of `fairShareHeader`; others have 1.",
        default=None,
        raw=WEIGHTS,
        env="SHOAL_QUEUE_FAIR_SHARE_WEIGHTS",
        containers=("proxy",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSpec:
    """Replicas that follow the queue. Leave it out to set `replicas` by hand or by an HPA."""

    RULES: ClassVar = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not be larger than maxReplicas",
            ".minReplicas",
        ),
    )

    min_replicas: int = spec_field("Never fewer pods than this.", default=1, minimum=1, maximum=10000)
    max_replicas: int = spec_field("Never more pods than this.", minimum=1, maximum=10000)
    target_queue_depth: int | None = spec_field(
        "Rows waiting and running that one pod should have; default: two full batches.",
        default=None,
        minimum=1,
        maximum=1_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """How pods are replaced when the spec changes."""

    RULES: ClassVar = (
        Rule(
            "self.maxSurge > 0 || self.maxUnavailable > 0",
            "maxSurge and maxUnavailable cannot both be 0: no pod could ever be replaced",
            ".maxSurge",
        ),
    )

    max_surge: int = spec_field(
        "Pods above the wanted number during a rollout. With 1 a spare GPU is needed; with 0 and"
        " `maxUnavailable` 1 a pod leaves before its successor comes.",
        default=1,
        minimum=0,
        maximum=1000,
    )
    max_unavailable: int = spec_field("Pods that may be missing during a rollout.", default=0, minimum=0, maximum=1000)
    progress_deadline_seconds: int = spec_field(
        "A rollout without progress for this long is reported as failed. Longer than pulling the"
        " image and loading the model.",
        default=600,
        minimum=10,
        maximum=86400,
    )
    drain_delay_seconds: int = spec_field(
        "A pod that stops keeps accepting requests this long, until every load balancer knows.",
        default=5,
        minimum=0,
        maximum=600,
        env="SHOAL_PROXY_DRAIN_DELAY_S",
        containers=("proxy",),
    )
    drain_timeout_seconds: int = spec_field(
        "Time for a stopping pod to finish what it accepted.",
        default=60,
        minimum=0,
        maximum=3600,
        env="SHOAL_PROXY_DRAIN_TIMEOUT_S",
        containers=("proxy",),
    )
