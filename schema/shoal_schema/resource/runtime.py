"""The containers of a pod: the runtime, ours or a foreign one, and the proxy."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import PROXY, RUNTIME, Env, Rule, Section
from shoal_schema.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.quantities import Quantity
from shoal_schema.resource.passthrough import (
    HEADER_NAME,
    HIDES_OURS,
    HIDES_OURS_IN_PROXY,
    OWN_PATHS,
    PROXY_PATHS,
    SET,
    Argument,
    EnvironmentVariables,
    ImagePullPolicy,
    OpenObject,
    ResourceClaims,
    Resources,
    VolumeMounts,
)

SECURITY_CONTEXT = Meta(
    description="The container's security context; given fields replace those of the restricted default."
)
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


DeviceName = Annotated[str, Meta(pattern=r"(?i)^(auto|cpu|cuda(:\d+)?)\Z")]
"""A process may name one of several GPUs; a pod has those that it asked for."""
GrpcPort = Annotated[int, Meta(ge=0, le=65_535)]
"""On one machine any port will do, and 0 picks one."""


class RuntimeSpec(Section, frozen=True):
    """The container that runs the model."""

    RULES: ClassVar[tuple[Rule, ...]] = (
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
        Rule(
            "!has(self.volumeMounts)"
            f" || self.volumeMounts.all(m, !has(m.mountPath) || !m.mountPath.matches(r'{OWN_PATHS}'))",
            f"mountPath {HIDES_OURS}",
            ".volumeMounts",
        ),
        *(
            Rule(f"!has(self.port) || {test}", f"runtime.{name} {OWN_RUNTIME_ONLY}", f".{name}")
            for name, test in (
                ("device", "self.device == 'Auto'"),
                ("dtype", "self.dtype == 'Auto'"),
                ("compile", "!self.compile"),
                ("threads", "!has(self.threads)"),
                ("preprocessThreads", "self.preprocessThreads == 2"),
                ("forwardTimeoutSeconds", "self.forwardTimeoutSeconds == 60"),
            )
        ),
    )

    image: (
        Annotated[
            str,
            Meta(
                max_length=1024,
                description="Image of the runtime; default: the operator's `SHOAL_OPERATOR_RUNTIME_IMAGE`.",
            ),
        ]
        | None
    ) = None
    device: Annotated[
        Device,
        Meta(description="Where the model runs. `Auto` takes the GPU when the pod has one."),
        Env("SHOAL_RUNTIME_DEVICE", RUNTIME, reads=DeviceName, allowed="auto, cpu, cuda or cuda:N", lower=True),
    ] = Device.AUTO
    dtype: Annotated[
        DType,
        Meta(description="Precision of the weights. `Auto` keeps the file's."),
        Env("SHOAL_RUNTIME_DTYPE", RUNTIME, lower=True),
    ] = DType.AUTO
    compile: Annotated[
        bool,
        Meta(description="Compile the model with `torch.compile` before the pod becomes ready."),
        Env("SHOAL_RUNTIME_COMPILE", RUNTIME),
    ] = False
    threads: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1024,
                description="CPU threads inside one operation; default: torch's own choice, at most the container's"
                " CPU limit.",
            ),
            Env("SHOAL_RUNTIME_THREADS", RUNTIME),
        ]
        | None
    ) = None
    preprocess_threads: Annotated[
        int,
        Meta(ge=1, le=256, description="Threads that prepare rows while a batch runs."),
        Env("SHOAL_RUNTIME_PREPROCESS_THREADS", RUNTIME),
    ] = 2
    forward_timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=3600, description="A batch that runs longer ends the runtime, which then restarts."),
        Env("SHOAL_RUNTIME_FORWARD_TIMEOUT_S", RUNTIME),
    ] = 60.0
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits, as in a container. Any GPU resource name works (`nvidia.com/gpu`,"
                " `nvidia.com/mig-1g.10gb`, `amd.com/gpu`). Where a quota asks for limits of CPU and memory, give"
                " them here: what a model needs nobody else knows."
            ),
        ]
        | None
    ) = None
    resource_claims: Annotated[
        ResourceClaims,
        Meta(description="The pod's `resourceClaims` (dynamic resource allocation); name them in `resources.claims`."),
    ] = ()
    env: Annotated[
        EnvironmentVariables,
        Meta(
            description="More environment variables of the runtime container, as in a container: Kubernetes replaces"
            " `$(NAME)`, and `$$` is one `$`."
        ),
    ] = ()
    volume_mounts: Annotated[
        VolumeMounts,
        Meta(
            description="More mounts of the runtime container, and of the init container `model`, as in a container;"
            " of volumes in `pod.volumes`."
        ),
    ] = ()
    shared_memory: (
        Annotated[
            Quantity,
            Meta(
                description="The most that may lie in `/dev/shm`; it counts as memory of the container. Default: what"
                " the container's memory limit, or the node, leaves."
            ),
        ]
        | None
    ) = None
    image_pull_policy: (
        Annotated[
            ImagePullPolicy,
            Meta(
                description="When a node asks the registry for the image. Default: `Always` for the tag `latest`,"
                " else `IfNotPresent`."
            ),
        ]
        | None
    ) = None
    security_context: Annotated[OpenObject, SECURITY_CONTEXT] | None = None
    port: (
        Annotated[
            int,
            Meta(
                ge=1024,
                le=65_535,
                description="The port where a foreign server of the Open Inference Protocol (V2, HTTP) listens inside"
                " the pod, any but the proxy's 8080 and 9090. Setting it replaces our runtime by `image`.",
            ),
        ]
        | None
    ) = None
    command: (
        Annotated[
            tuple[Argument, ...],
            Meta(
                max_length=64, description="Entry point of a foreign runtime; `$(NAME)` is replaced as in a container."
            ),
        ]
        | None
    ) = None
    args: (
        Annotated[
            tuple[Argument, ...],
            Meta(
                max_length=256, description="Arguments of a foreign runtime; `$(NAME)` is replaced as in a container."
            ),
        ]
        | None
    ) = None


ORIGIN = r"^(\*|https?://[a-z0-9.:\[\]-]+)\Z"


class CorsSpec(Section, frozen=True):
    """Which pages of other origins may read answers in a browser (CORS)."""

    allowed_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=ORIGIN, max_length=256)], ...],
        Meta(
            max_length=32,
            extra_json_schema=SET,
            description="Origins, as `https://app.example.com`, in lower case; `*` is every origin. Preflight requests"
            " need no key. Default: none, so browsers keep answers from pages of other origins.",
        ),
        Env("SHOAL_PROXY_CORS_ALLOWED_ORIGINS", PROXY, allowed="comma-separated origins"),
    ] = ()


class ProxySpec(Section, frozen=True):
    """The container that queues and batches."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.forwardHeaders) || self.forwardHeaders.all(h, !h.matches('{OWN_HEADERS_PATTERN}'))",
            f"forwardHeaders must not name a header of the connection's own: {', '.join(sorted(OWN_HEADERS))}",
            ".forwardHeaders",
        ),
        Rule(
            "!has(self.grpcPort) || !(self.grpcPort in [8080, 9090])",
            "grpcPort cannot be 8080 or 9090: the proxy serves HTTP there",
            ".grpcPort",
        ),
        Rule(
            "!has(self.volumeMounts)"
            f" || self.volumeMounts.all(m, !has(m.mountPath) || !m.mountPath.matches(r'{PROXY_PATHS}'))",
            f"mountPath {HIDES_OURS_IN_PROXY}",
            ".volumeMounts",
        ),
    )

    image: (
        Annotated[
            str,
            Meta(
                max_length=1024, description="Image of the proxy; default: the operator's `SHOAL_OPERATOR_PROXY_IMAGE`."
            ),
        ]
        | None
    ) = None
    forward_headers: Annotated[
        tuple[Annotated[str, Meta(pattern=HEADER_NAME, max_length=128)], ...],
        Meta(
            max_length=16,
            extra_json_schema=SET,
            description="Request headers that reach the runtime; requests that differ in one never share a batch.",
        ),
        Env("SHOAL_PROXY_FORWARD_HEADERS", PROXY, allowed="comma-separated header names"),
    ] = ()
    compression_min_bytes: (
        Annotated[
            int,
            Meta(
                ge=256,
                le=1 << 30,
                description="Compress responses of so many bytes or more, in gzip or deflate, for clients that send"
                " `Accept-Encoding`. Default: never, as many HTTP clients send that header without a user's choice, and"
                " compression costs more time than it saves inside a cluster.",
            ),
            Env("SHOAL_PROXY_COMPRESSION_MIN_BYTES", PROXY),
        ]
        | None
    ) = None
    cors: CorsSpec = CorsSpec()
    docs: Annotated[
        bool,
        Meta(
            description="Answer `GET /docs`, a page to try the model in a browser, and `GET /openapi.json`. Off unless"
            " asked for, as a route may show them to the world; `shoal serve` has them on."
        ),
        Env("SHOAL_PROXY_DOCS", PROXY),
    ] = False
    grpc_port: (
        Annotated[
            int,
            Meta(
                ge=1024,
                le=65_535,
                description="A port for the Open Inference Protocol over gRPC, beside HTTP's, on the pods and on the"
                " Service, as `grpc`; any but 8080 and 9090. Default: none.",
            ),
            Env("SHOAL_PROXY_GRPC_PORT", PROXY, reads=GrpcPort),
        ]
        | None
    ) = None
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits; default: 100m CPU and 256Mi memory, at most 2 CPU (the proxy uses"
                " one) and 512Mi and four times `queue.maxBytes` of memory."
            ),
        ]
        | None
    ) = None
    image_pull_policy: (
        Annotated[
            ImagePullPolicy,
            Meta(
                description="When a node asks the registry for the image. Default: `Always` for the tag `latest`,"
                " else `IfNotPresent`."
            ),
        ]
        | None
    ) = None
    security_context: Annotated[OpenObject, SECURITY_CONTEXT] | None = None
    env: Annotated[
        EnvironmentVariables,
        Meta(
            description="More environment variables of the proxy, as in a container: bounds that have no field here"
            " (docs/reference/limits.md)."
        ),
    ] = ()
    volume_mounts: Annotated[
        VolumeMounts,
        Meta(
            description="More mounts of the proxy container, as in a container; of volumes in `pod.volumes`. With"
            " `SSL_CERT_FILE` in `env`, say, the authorities of a private issuer of tokens."
        ),
    ] = ()
