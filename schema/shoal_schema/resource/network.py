"""TLS and NetworkPolicy of a service's pods."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, field

from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.rules import Rule, requires_value
from shoal_schema.resource.passthrough import OpenObject, PassedThrough, object_name


class TlsSpec(SettingsSection, frozen=True):
    """TLS in the proxy. The admin port stays plain HTTP."""

    secret_name: Annotated[
        str,
        object_name(
            "A Secret of the namespace with `tls.crt` and `tls.key` for the name `NAME.NAMESPACE.svc`, as"
            " cert-manager makes it. HTTP moves to port 443 and gRPC uses TLS too; a renewed certificate is"
            " used within two minutes."
        ),
    ]
    client_ca_secret_name: (
        Annotated[
            str,
            object_name(
                "A Secret of the namespace with `ca.crt`: clients need a certificate issued by one of these "
                "authorities (mutual TLS). Replicas forward requests to peers only if one of these "
                "authorities also issued the certificate of `secretName`, for both client and server "
                "authentication."
            ),
        ]
        | None
    ) = None


class NetworkPolicyMode(StrEnum):
    """Whether a service has a NetworkPolicy."""

    RESTRICTED = "Restricted"
    NONE = "None"


class Peer(PassedThrough, frozen=True):
    """An element of ``from`` in a NetworkPolicy."""

    namespace_selector: (
        Annotated[OpenObject, Meta(description="Labels of the namespaces whose pods may connect; `{}` is all of them.")]
        | None
    ) = None
    pod_selector: (
        Annotated[
            OpenObject,
            Meta(
                description="Labels of the pods that may connect, in the service's namespace or in those of"
                " `namespaceSelector`."
            ),
        ]
        | None
    ) = None
    ip_block: (
        Annotated[
            OpenObject,
            Meta(description="Addresses that may connect: the range `cidr` except those in `except`."),
        ]
        | None
    ) = None


class NetworkPolicySpec(SettingsSection, frozen=True):
    """Which pods may connect, in clusters whose network enforces policies. Other connections are denied."""

    RULES: ClassVar[tuple[Rule, ...]] = (requires_value("from", "mode", "Restricted"),)

    mode: Annotated[
        NetworkPolicyMode,
        Meta(
            description="`Restricted` creates a NetworkPolicy: `from` reaches the inference ports, and the operator's"
            " namespace and the chart's `metricsNamespaces` reach the admin port. `None` creates none."
        ),
    ] = NetworkPolicyMode.RESTRICTED
    from_: Annotated[
        tuple[Peer, ...],
        Meta(
            max_length=32,
            description="Peers of a NetworkPolicy that may reach the inference ports, such as the ingress controller's"
            " namespace. Replicas and the activator always may. Default: everything.",
        ),
    ] = field(name="from", default=())
