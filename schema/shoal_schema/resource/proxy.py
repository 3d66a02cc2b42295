"""The container of the proxy."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import PROXY, Env, SettingsSection
from shoal_schema.fields.rules import Every, Matches, Not, Rule, not_in
from shoal_schema.interfaces.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.resource.passthrough import (
    HEADER_NAME,
    HIDES_OURS_IN_PROXY,
    PROXY_PATHS,
    PROXY_PORTS,
    PULL_POLICY,
    SECURITY_CONTEXT,
    SET,
    EnvironmentVariables,
    ImagePullPolicy,
    OpenObject,
    Resources,
    VolumeMounts,
)

GrpcPort = Annotated[int, Meta(ge=0, le=65_535)]
"""A process accepts any port; 0 picks a free one."""
ORIGIN = r"^(\*|https?://[a-z0-9.:\[\]-]+)\Z"


class CorsSpec(SettingsSection, frozen=True):
    """Cross-origin access to responses in a browser (CORS)."""

    allowed_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=ORIGIN, max_length=256)], ...],
        Meta(
            max_length=32,
            extra_json_schema=SET,
            description="Allowed origins such as `https://app.example.com`, in lower case; `*` allows every"
            " origin. Preflight requests need no key. Default: none.",
        ),
        Env("SHOAL_PROXY_CORS_ALLOWED_ORIGINS", PROXY, allowed="comma-separated origins"),
    ] = ()


class ProxySpec(SettingsSection, frozen=True):
    """The proxy's container, which queues and batches requests."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Every("forwardHeaders", Not(Matches("", OWN_HEADERS_PATTERN))),
            f"forwardHeaders must not name a header that the connection sets: {', '.join(sorted(OWN_HEADERS))}",
            "forwardHeaders",
        ),
        not_in("grpcPort", PROXY_PORTS, "grpcPort cannot be 8080 or 9090: the proxy serves HTTP on these"),
        Rule(
            Every("volumeMounts", Not(Matches("mountPath", PROXY_PATHS))),
            f"mountPath {HIDES_OURS_IN_PROXY}",
            "volumeMounts",
        ),
    )

    image: (
        Annotated[
            str,
            Meta(
                max_length=1024, description="Image of the proxy. Default: the operator's `SHOAL_OPERATOR_PROXY_IMAGE`."
            ),
        ]
        | None
    ) = None
    # HTTP behaviour.
    forward_headers: Annotated[
        tuple[Annotated[str, Meta(pattern=HEADER_NAME, max_length=128)], ...],
        Meta(
            max_length=16,
            extra_json_schema=SET,
            description="Request headers to pass to the runtime. Requests that differ in one of them never share a"
            " batch.",
        ),
        Env("SHOAL_PROXY_FORWARD_HEADERS", PROXY, allowed="comma-separated header names"),
    ] = ()
    compression_min_bytes: (
        Annotated[
            int,
            Meta(
                ge=256,
                le=1 << 30,
                description=(
                    "Minimum size of responses to compress in gzip or deflate, for clients that send "
                    "`Accept-Encoding`. Default: no compression; inside a cluster, compression costs more time "
                    "than it saves."
                ),
            ),
            Env("SHOAL_PROXY_COMPRESSION_MIN_BYTES", PROXY),
        ]
        | None
    ) = None
    cors: CorsSpec = CorsSpec()
    docs: Annotated[
        bool,
        Meta(
            description="Serve `GET /docs`, a page to try the model in a browser, and `GET /openapi.json`."
            " Default: off, as a route may publish them; `shoal serve` enables them."
        ),
        Env("SHOAL_PROXY_DOCS", PROXY),
    ] = False
    # gRPC and the container's own fields.
    grpc_port: (
        Annotated[
            int,
            Meta(
                ge=1024,
                le=65_535,
                description="Port of the Open Inference Protocol over gRPC, on the pods and on the Service"
                " (`grpc`). Must not be 8080 or 9090. Default: none.",
            ),
            Env("SHOAL_PROXY_GRPC_PORT", PROXY, reads=GrpcPort),
        ]
        | None
    ) = None
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits of the proxy. Default: requests of 100m CPU and 256Mi memory,"
                " limits of 2 CPU (the proxy uses one) and 512Mi plus four times `queue.maxBytes` of memory."
            ),
        ]
        | None
    ) = None
    image_pull_policy: Annotated[ImagePullPolicy, PULL_POLICY] | None = None
    security_context: Annotated[OpenObject, SECURITY_CONTEXT] | None = None
    env: Annotated[
        EnvironmentVariables,
        Meta(description="Additional environment variables of the proxy, for bounds without a field."),
    ] = ()
    volume_mounts: Annotated[
        VolumeMounts,
        Meta(
            description=(
                "Additional volume mounts of the proxy container, for example for the file that `SSL_CERT_FILE` "
                "in `env` names. The volumes are in `pod.volumes`."
            )
        ),
    ] = ()
