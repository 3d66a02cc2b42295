"""The spec of an ``InferenceService``: every field, its range, its default and its meaning.

The variables of ``docs/contracts.md`` section 3 and the fields here are the same table; a test
compares them. Numbers are integers with the unit in the name, since two API servers may print one
float in two ways. Cross-field rules are CEL, checked by the API server before anything is stored.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shoal_operator.api import passthrough
from shoal_operator.api.fields import Json, Rule, spec_field

RUNTIME = ("runtime",)
MODEL_READERS = ("model", "runtime")
BOTH = ("proxy", "runtime")

_OWN_RUNTIME_ONLY = "has no effect on a foreign runtime (runtime.port is set): remove it"


class ModelFormat(StrEnum):
    """How a model is stored."""

    AUTO = "Auto"
    TORCH_EXPORT = "TorchExport"
    TORCH_SCRIPT = "TorchScript"
    SAFETENSORS = "Safetensors"
    HANDLER = "Handler"


class Device(StrEnum):
    """Where a model runs."""

    AUTO = "Auto"
    CPU = "CPU"
    CUDA = "CUDA"


class DType(StrEnum):
    """The precision of a model's weights."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim in the service's namespace."""

    claim_name: str = spec_field("Name of the claim.", max_length=253)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A folder of the node."""

    path: str = spec_field("Absolute path on the node.", pattern="^/", max_length=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVolume:
    """An OCI image whose files are the model."""

    reference: str = spec_field("Image reference, best by digest.", max_length=1024)
    pull_policy: str | None = spec_field(
        "Always, IfNotPresent or Never.", default=None, pattern="^(Always|IfNotPresent|Never)$"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVolume:
    """A volume that holds the model, mounted read-only. Give exactly one source."""

    RULES: ClassVar = (
        Rule(
            "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image)].filter(given, given).size() == 1",
            "give exactly one of persistentVolumeClaim, hostPath and image",
            "",
        ),
    )

    mount_path: str = spec_field(
        "Where the volume appears in the runtime container.",
        default="/models",
        pattern="^/",
        max_length=256,
    )
    persistent_volume_claim: Claim | None = spec_field("A PersistentVolumeClaim of this namespace.", default=None)
    host_path: HostPath | None = spec_field(
        "A folder of the node. The restricted Pod Security level refuses it.", default=None
    )
    image: ImageVolume | None = spec_field("An OCI image; Kubernetes mounts its files (image volumes).", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model: where it lies and how it is read."""

    RULES: ClassVar = (
        Rule(
            "!has(self.volume) || !has(self.uri) || self.uri.startsWith('file://')",
            "model.volume has no effect on a model that is downloaded: "
            "use a file:// uri below volume.mountPath, or remove the volume",
            ".volume",
        ),
        Rule(
            "!has(self.handler) || self.format in ['Auto', 'Handler']",
            "model.handler needs model.format Auto or Handler",
            ".handler",
        ),
    )

    uri: str | None = spec_field(
        "Where the model lies: `file://` (inside the image, or below `volume.mountPath`), `http://`"
        " or `https://`. A downloaded model is fetched by the init container `model`. Required"
        " unless `runtime.port` names a foreign runtime.",
        default=None,
        pattern="^(file|https?)://.+",
        max_length=2048,
        env="SHOAL_MODEL_URI",
        containers=MODEL_READERS,
    )
    version: str = spec_field(
        "The version that callers see in paths and answers.",
        default="1",
        pattern=r"^[A-Za-z0-9._-]+$",
        max_length=63,
        env="SHOAL_MODEL_VERSION",
        containers=BOTH,
    )
    checksum: str | None = spec_field(
        "`sha256:` and 64 hex digits of the file; the pod refuses any other file.",
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        max_length=71,
        env="SHOAL_MODEL_CHECKSUM",
        containers=MODEL_READERS,
    )
    format: ModelFormat = spec_field(
        "How the model is stored. `Auto` looks at the files.",
        default=ModelFormat.AUTO,
        env="SHOAL_MODEL_FORMAT",
        containers=RUNTIME,
    )
    handler: str | None = spec_field(
        "`package.module:Class` or `path.py:Class` that loads and runs the model; default: what `model.toml` names.",
        default=None,
        pattern=r"^[A-Za-z0-9_./-]+:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=256,
        env="SHOAL_MODEL_HANDLER",
        containers=RUNTIME,
    )
    parameters: Json | None = spec_field(
        "A JSON object, handed to the handler as it is.",
        default=None,
        raw=passthrough.OPEN_OBJECT,
        env="SHOAL_MODEL_PARAMETERS",
        containers=RUNTIME,
    )
    allow_pickle: bool = spec_field(
        "Load weights that are stored as pickles. A pickle can run any code: only for files you trust.",
        default=False,
        env="SHOAL_MODEL_ALLOW_PICKLE",
        containers=RUNTIME,
    )
    volume: ModelVolume | None = spec_field("A volume that holds the model of a `file://` uri.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
    """The container that runs the model."""

    RULES: ClassVar = (
        Rule(
            "!has(self.env) || self.env.all(e, !e.name.startsWith('SHOAL_'))",
            "names that start with SHOAL_ belong to the operator: use the field of the spec",
            ".env",
        ),
        Rule(
            "!has(self.port) || (has(self.image) && self.image != '')",
            "a foreign runtime (runtime.port is set) needs runtime.image",
            ".image",
        ),
        Rule(
            "has(self.port) || (!has(self.command) && !has(self.args))",
            "command and args need runtime.port, the port where the foreign runtime listens",
            ".port",
        ),
        *(
            Rule(f"!has(self.port) || {test}", f"runtime.{name} {_OWN_RUNTIME_ONLY}", f".{name}")
            for name, test in (
                ("device", "self.device == 'Auto'"),
                ("dtype", "self.dtype == 'Auto'"),
                ("compile", "!self.compile"),
                ("threads", "!has(self.threads)"),
                ("preprocessThreads", "!has(self.preprocessThreads)"),
                ("forwardTimeoutSeconds", "!has(self.forwardTimeoutSeconds)"),
            )
        ),
    )

    image: str | None = spec_field(
        "Image of the runtime; default: the operator's `SHOAL_OPERATOR_RUNTIME_IMAGE`.",
        default=None,
        max_length=1024,
    )
    device: Device = spec_field(
        "Where the model runs. `Auto` takes the GPU when the pod has one.",
        default=Device.AUTO,
        env="SHOAL_RUNTIME_DEVICE",
        containers=RUNTIME,
        lower=True,
    )
    dtype: DType = spec_field(
        "Precision of the weights. `Auto` keeps the file's.",
        default=DType.AUTO,
        env="SHOAL_RUNTIME_DTYPE",
        containers=RUNTIME,
        lower=True,
    )
    compile: bool = spec_field(
        "Compile the model with `torch.compile` before the pod becomes ready.",
        default=False,
        env="SHOAL_RUNTIME_COMPILE",
        containers=RUNTIME,
    )
    threads: int | None = spec_field(
        "CPU threads inside one operation; default: torch's own choice.",
        default=None,
        minimum=1,
        maximum=1024,
        env="SHOAL_RUNTIME_THREADS",
        containers=RUNTIME,
    )
    preprocess_threads: int | None = spec_field(
        "Threads that prepare rows while a batch runs; default 2.",
        default=None,
        minimum=1,
        maximum=256,
        env="SHOAL_RUNTIME_PREPROCESS_THREADS",
        containers=RUNTIME,
    )
    forward_timeout_seconds: int | None = spec_field(
        "A batch that runs longer ends the runtime, which then restarts; default 60.",
        default=None,
        minimum=1,
        maximum=3600,
        env="SHOAL_RUNTIME_FORWARD_TIMEOUT_S",
        containers=RUNTIME,
    )
    forward_headers: tuple[str, ...] = spec_field(
        "Request headers that reach the runtime; requests that differ in one never share a batch.",
        default=(),
        max_items=16,
        max_length=128,
        is_set=True,
        env="SHOAL_PROXY_FORWARD_HEADERS",
        containers=("proxy",),
    )
    resources: Json | None = spec_field(
        "Requests and limits, as in a container. Any GPU resource name works"
        " (`nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `amd.com/gpu`).",
        default=None,
        raw=passthrough.RESOURCES,
    )
    resource_claims: tuple[Json, ...] = spec_field(
        "The pod's `resourceClaims` (dynamic resource allocation); name them in `resources.claims`.",
        default=(),
        raw=passthrough.RESOURCE_CLAIMS,
    )
    env: tuple[Json, ...] = spec_field(
        "More environment variables of the runtime container.", default=(), raw=passthrough.ENV
    )
    port: int | None = spec_field(
        "The port where a foreign server of the Open Inference Protocol (V2, HTTP) listens inside"
        " the pod. Setting it replaces our runtime by `image`.",
        default=None,
        minimum=1024,
        maximum=65535,
    )
    command: tuple[str, ...] | None = spec_field(
        "Entry point of a foreign runtime.", default=None, max_items=64, max_length=4096
    )
    args: tuple[str, ...] | None = spec_field(
        "Arguments of a foreign runtime.", default=None, max_items=256, max_length=4096
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySpec:
    """The container that queues and batches."""

    image: str | None = spec_field(
        "Image of the proxy; default: the operator's `SHOAL_OPERATOR_PROXY_IMAGE`.",
        default=None,
        max_length=1024,
    )
    resources: Json | None = spec_field(
        "Requests and limits; default: requests of 100m CPU and 256Mi memory.",
        default=None,
        raw=passthrough.RESOURCES,
    )


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
    )

    max_batch_size: int = spec_field(
        "Rows in one batch at most.",
        default=32,
        minimum=1,
        maximum=65536,
        env="SHOAL_BATCHING_MAX_BATCH_SIZE",
        containers=BOTH,
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
        containers=RUNTIME,
    )
    max_delay_milliseconds: int = spec_field(
        "How long a batch may wait for more rows while the runtime is idle.",
        default=0,
        minimum=0,
        maximum=60000,
        env="SHOAL_BATCHING_MAX_DELAY_MS",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """How much work may wait in one pod; more is answered with 503 and `Retry-After`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressSpec:
    """An Ingress to the service."""

    host: str = spec_field(
        "Host name of the route.",
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        max_length=253,
    )
    path: str = spec_field(
        "Path prefix. The proxy sees the whole path, so give `/`, or `/v2/models/NAME` where services share a host.",
        default="/",
        pattern="^/",
        max_length=1024,
    )
    class_name: str | None = spec_field("The ingress class; default: the cluster's.", default=None, max_length=253)
    tls_secret_name: str | None = spec_field(
        "Secret with the certificate; the URL is then https.", default=None, max_length=253
    )
    annotations: Json | None = spec_field(
        "Annotations for the ingress controller.", default=None, raw=passthrough.STRING_MAP
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """A Gateway that the route attaches to."""

    name: str = spec_field("Name of the Gateway.", max_length=253)
    namespace: str | None = spec_field("Its namespace; default: the service's.", default=None, max_length=63)
    section_name: str | None = spec_field("One listener of the Gateway.", default=None, max_length=253)
    port: int | None = spec_field("One port of the Gateway.", default=None, minimum=1, maximum=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteSpec:
    """A Gateway API HTTPRoute to the service."""

    RULES: ClassVar = (Rule("self.parentRefs.size() >= 1", "name at least one Gateway", ".parentRefs"),)

    parent_refs: tuple[ParentRef, ...] = spec_field("The Gateways.", max_items=32)
    hostnames: tuple[str, ...] = spec_field(
        "Host names; default: those of the Gateway's listeners.",
        default=(),
        max_items=16,
        max_length=253,
    )
    path: str = spec_field(
        "Path prefix. The proxy sees the whole path, so give `/`, or `/v2/models/NAME` where services share a host.",
        default="/",
        pattern="^/",
        max_length=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """How callers from outside the cluster reach the service."""

    RULES: ClassVar = (
        Rule(
            "has(self.ingress) || has(self.httpRoute)",
            "give ingress, httpRoute or both; leave route out for a cluster-internal service",
            "",
        ),
    )

    ingress: IngressSpec | None = spec_field("Route by an Ingress.", default=None)
    http_route: HttpRouteSpec | None = spec_field("Route by a Gateway API HTTPRoute.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """What is passed through to the pods."""

    labels: Json | None = spec_field("More labels of the pods.", default=None, raw=passthrough.STRING_MAP)
    annotations: Json | None = spec_field("More annotations of the pods.", default=None, raw=passthrough.STRING_MAP)
    node_selector: Json | None = spec_field("As in a pod.", default=None, raw=passthrough.STRING_MAP)
    tolerations: tuple[Json, ...] = spec_field("As in a pod.", default=(), raw=passthrough.TOLERATIONS)
    affinity: Json | None = spec_field("As in a pod.", default=None, raw=passthrough.OPEN_OBJECT)
    topology_spread_constraints: tuple[Json, ...] | None = spec_field(
        "As in a pod; default: spread over nodes and zones where possible.",
        default=None,
        raw=passthrough.open_list(16),
    )
    priority_class_name: str | None = spec_field("As in a pod.", default=None, max_length=253)
    runtime_class_name: str | None = spec_field("As in a pod.", default=None, max_length=253)
    service_account_name: str | None = spec_field(
        "A ServiceAccount of your own; default: one without permissions is made.",
        default=None,
        max_length=253,
    )
    image_pull_secrets: tuple[Json, ...] = spec_field("As in a pod.", default=(), raw=passthrough.PULL_SECRETS)
    security_context: Json | None = spec_field(
        "The pod's security context; given fields replace those of the restricted default.",
        default=None,
        raw=passthrough.OPEN_OBJECT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceServiceSpec:
    """What a user asks for."""

    RULES: ClassVar = (
        Rule(
            "self.batching.maxBatchSize <= self.queue.maxItems",
            "queue.maxItems must hold at least one batch of batching.maxBatchSize rows",
            ".queue.maxItems",
        ),
        Rule(
            "has(self.runtime.port) || has(self.model.uri)",
            "model.uri is required, unless runtime.port names a foreign runtime",
            ".model.uri",
        ),
        *(
            Rule(
                f"!has(self.runtime.port) || {test}",
                f"{name} {_OWN_RUNTIME_ONLY}",
                f".{name}",
            )
            for name, test in (
                ("model.uri", "!has(self.model.uri)"),
                ("model.checksum", "!has(self.model.checksum)"),
                ("model.format", "self.model.format == 'Auto'"),
                ("model.handler", "!has(self.model.handler)"),
                ("model.parameters", "!has(self.model.parameters)"),
                ("model.allowPickle", "!self.model.allowPickle"),
                ("batching.allowedBatchSizes", "!has(self.batching.allowedBatchSizes)"),
            )
        ),
    )

    model: ModelSpec = spec_field("The model: where it lies and how it is read.")
    runtime: RuntimeSpec = spec_field("The container that runs the model.", default_factory=RuntimeSpec)
    proxy: ProxySpec = spec_field("The container that queues and batches.", default_factory=ProxySpec)
    batching: BatchingSpec = spec_field("How requests become batches.", default_factory=BatchingSpec)
    queue: QueueSpec = spec_field(
        "How much work may wait in one pod; more is answered with 503 and `Retry-After`.",
        default_factory=QueueSpec,
    )
    replicas: int = spec_field(
        "Pods to run. What `kubectl scale` and an HPA write. With `scaling` the operator writes it"
        " too: a number set by hand is taken at once, held for five minutes unless the load asks"
        " for more, and kept within `minReplicas` and `maxReplicas`. 0 parks a service that has no"
        " `scaling`.",
        default=1,
        minimum=0,
        maximum=10000,
    )
    scaling: ScalingSpec | None = spec_field(
        "Replicas that follow the queue. Leave it out to set `replicas` by hand or by an HPA.",
        default=None,
    )
    rollout: RolloutSpec = spec_field("How pods are replaced when the spec changes.", default_factory=RolloutSpec)
    route: RouteSpec | None = spec_field("How callers from outside the cluster reach the service.", default=None)
    pod: PodSpec = spec_field("What is passed through to the pods.", default_factory=PodSpec)
