"""The containers of a pod: the runtime, ours or a foreign one, and the proxy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shoal_operator.api import passthrough
from shoal_operator.api.fields import HEADER_NAME, Json, Rule, spec_field

RUNTIME = ("runtime",)

OWN_RUNTIME_ONLY = "has no effect on a foreign runtime (runtime.port is set): remove it"


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
        Rule(
            "!has(self.port) || !(self.port in [8080, 9090])",
            "runtime.port cannot be 8080 or 9090: the proxy listens there, in the same pod; let the runtime listen on"
            " another port",
            ".port",
        ),
        *(
            Rule(f"!has(self.port) || {test}", f"runtime.{name} {OWN_RUNTIME_ONLY}", f".{name}")
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
        "CPU threads inside one operation; default: torch's own choice, at most the container's CPU limit.",
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
        pattern=HEADER_NAME,
        max_length=128,
        is_set=True,
        env="SHOAL_PROXY_FORWARD_HEADERS",
        containers=("proxy",),
    )
    resources: Json | None = spec_field(
        "Requests and limits, as in a container. Any GPU resource name works"
        " (`nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `amd.com/gpu`). Where a quota asks for limits of CPU and memory,"
        " give them here: what a model needs nobody else knows.",
        default=None,
        raw=passthrough.RESOURCES,
    )
    resource_claims: tuple[Json, ...] = spec_field(
        "The pod's `resourceClaims` (dynamic resource allocation); name them in `resources.claims`.",
        default=(),
        raw=passthrough.RESOURCE_CLAIMS,
    )
    env: tuple[Json, ...] = spec_field(
        "More environment variables of the runtime container, as in a container: Kubernetes replaces `$(NAME)`, and"
        " `$$` is one `$`.",
        default=(),
        raw=passthrough.ENV,
    )
    port: int | None = spec_field(
        "The port where a foreign server of the Open Inference Protocol (V2, HTTP) listens inside"
        " the pod, any but the proxy's 8080 and 9090. Setting it replaces our runtime by `image`.",
        default=None,
        minimum=1024,
        maximum=65535,
    )
    command: tuple[str, ...] | None = spec_field(
        "Entry point of a foreign runtime; `$(NAME)` is replaced as in a container.",
        default=None,
        max_items=64,
        max_length=4096,
    )
    args: tuple[str, ...] | None = spec_field(
        "Arguments of a foreign runtime; `$(NAME)` is replaced as in a container.",
        default=None,
        max_items=256,
        max_length=4096,
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
        "Requests and limits; default: 100m CPU and 256Mi memory, at most 2 CPU (the proxy uses one) and 512Mi and four"
        " times `queue.maxBytes` of memory.",
        default=None,
        raw=passthrough.RESOURCES,
    )
    env: tuple[Json, ...] = spec_field(
        "More environment variables of the proxy, as in a container: bounds that have no field here (docs/limits.md).",
        default=(),
        raw=passthrough.ENV,
    )
