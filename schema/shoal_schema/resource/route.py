"""Access to a service from outside the cluster."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.rules import Custom, Given, Rule, some_of
from shoal_schema.resource import GROUP
from shoal_schema.resource.passthrough import StringMap, Text

HOST_NAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
PathPrefix = Annotated[
    str,
    Meta(
        pattern=r"^/[-A-Za-z0-9._~/%:@+,=]*\Z",  # some controllers copy it verbatim into their configuration
        max_length=1024,
        description="Path prefix. The proxy receives the whole path, so set `/`, or `/v2/models/NAME` if services"
        " share a host.",
    ),
]


class ServiceType(StrEnum):
    """Types of a Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServiceSpec(SettingsSection, frozen=True):
    """The Service in front of the pods."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Custom(
                f"!has(self.annotations) || self.annotations.all(name, !name.startsWith('{GROUP}/'))",
                lambda service: not any(name.startswith(f"{GROUP}/") for name in service.annotations or ()),
            ),
            f"annotations must not begin with {GROUP}/: the operator uses these",
            "annotations",
        ),
    )

    type: Annotated[
        ServiceType,
        Meta(description="Type of the Service. The install must allow types other than `ClusterIP`."),
    ] = ServiceType.CLUSTER_IP
    annotations: (
        Annotated[dict[str, Text], Meta(max_length=64, description="Annotations for load balancers, meshes and DNS.")]
        | None
    ) = None


class Scheme(StrEnum):
    """Schemes of a Gateway's listener."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"


class IngressSpec(SettingsSection, frozen=True):
    """An Ingress to the service."""

    # What the route matches.
    host: Annotated[str, Meta(pattern=HOST_NAME, max_length=253, description="Host name of the route.")]
    path: PathPrefix = "/"
    class_name: Annotated[str, Meta(max_length=253, description="Ingress class. Default: the cluster's.")] | None = None
    tls_secret_name: (
        Annotated[str, Meta(max_length=253, description="Secret with the certificate; `status.url` is then https.")]
        | None
    ) = None
    annotations: Annotated[StringMap, Meta(description="Annotations for the ingress controller.")] | None = None


class ParentRef(SettingsSection, frozen=True):
    """A Gateway that the route attaches to."""

    name: Annotated[str, Meta(max_length=253, description="Name of the Gateway.")]
    namespace: (
        Annotated[str, Meta(max_length=63, description="Namespace of the Gateway. Default: the service's.")] | None
    ) = None
    section_name: (
        Annotated[
            str, Meta(max_length=253, description="Name of the Gateway's listener to attach to. Default: all of them.")
        ]
        | None
    ) = None
    port: (
        Annotated[
            int, Meta(ge=1, le=65_535, description="Port of the Gateway's listeners to attach to. Default: all ports.")
        ]
        | None
    ) = None


class HttpRouteSpec(SettingsSection, frozen=True):
    """A Gateway API HTTPRoute to the service."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(Given("parentRefs"), "parentRefs must name at least one Gateway", "parentRefs"),
    )

    # Where the route attaches and what it matches.
    parent_refs: Annotated[
        tuple[ParentRef, ...], Meta(max_length=32, description="The Gateways that the route attaches to.")
    ]
    hostnames: Annotated[
        tuple[Annotated[str, Meta(pattern=HOST_NAME, max_length=253)], ...],
        Meta(max_length=16, description="Host names of the route. Default: those of the Gateway's listeners."),
    ] = ()
    scheme: (
        Annotated[
            Scheme,
            Meta(
                description=(
                    "Scheme of `status.url`. Default: HTTPS if a parent has port 443 or the `sectionName` "
                    "`https`, otherwise HTTP."
                )
            ),
        ]
        | None
    ) = None
    path: PathPrefix = "/"
    timeout_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=3600,
                description="Timeout of the Gateway for a response (`timeouts.request`). Default: the Gateway's"
                " own, 15 s in some.",
            ),
        ]
        | None
    ) = None


class RouteSpec(SettingsSection, frozen=True):
    """Access to the service from outside the cluster."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        some_of(("ingress", "httpRoute"), "route", "remove route for a cluster-internal service"),
    )

    ingress: IngressSpec | None = None
    http_route: HttpRouteSpec | None = None
