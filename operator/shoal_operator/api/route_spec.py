"""How callers from outside the cluster reach a service."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shoal_operator.api import passthrough
from shoal_operator.api.fields import Json, Rule, spec_field

HOST_NAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressSpec:
    """An Ingress to the service."""

    host: str = spec_field(
        "Host name of the route.",
        pattern=HOST_NAME,
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


class Scheme(StrEnum):
    """How callers speak to a Gateway."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteSpec:
    """A Gateway API HTTPRoute to the service."""

    RULES: ClassVar = (Rule("self.parentRefs.size() >= 1", "name at least one Gateway", ".parentRefs"),)

    parent_refs: tuple[ParentRef, ...] = spec_field("The Gateways.", max_items=32)
    hostnames: tuple[str, ...] = spec_field(
        "Host names; default: those of the Gateway's listeners.",
        default=(),
        pattern=HOST_NAME,
        max_items=16,
        max_length=253,
    )
    scheme: Scheme | None = spec_field(
        "Scheme of `status.url`, as the Gateway's listener has it; default: HTTPS where a parent names port 443 or a"
        " listener (`sectionName`) called `https`, else HTTP.",
        default=None,
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
