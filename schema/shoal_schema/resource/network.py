"""Who reaches a service's pods, and what is said on the way: TLS, and the NetworkPolicy."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, field

from shoal_schema.declaring import Rule, Section
from shoal_schema.resource.passthrough import SECRET_NAME, OpenObject, PassedThrough


class TlsSpec(Section, frozen=True):
    """TLS in the proxy itself: callers speak it as far as the pod. The admin port stays plain."""

    secret_name: Annotated[
        str,
        Meta(
            pattern=SECRET_NAME,
            max_length=253,
            description="A Secret of the namespace with `tls.crt` and `tls.key`, as cert-manager makes it; the"
            " certificate names the Service, `NAME.NAMESPACE.svc`. The Service's port is then 443, `https`, and gRPC's"
            " speaks TLS too. A new one is used within a minute or two, by new connections.",
        ),
    ]
    client_ca_secret_name: (
        Annotated[
            str,
            Meta(
                pattern=SECRET_NAME,
                max_length=253,
                description="A Secret of the namespace with `ca.crt`: callers need a certificate of one of its"
                " authorities (mutual TLS). Replicas then hand requests over only where the certificate of `secretName`"
                " is one of those too, good for clients and servers.",
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
                description="Labels of the pods that may connect: in the service's namespace, or in those of"
                " `namespaceSelector`."
            ),
        ]
        | None
    ) = None
    ip_block: (
        Annotated[
            OpenObject,
            Meta(description="A range of addresses that may connect, `cidr`, without those of `except`."),
        ]
        | None
    ) = None


class NetworkPolicySpec(Section, frozen=True):
    """Who reaches the pods, where the cluster's network enforces policies. All that is not said here is closed."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.mode != 'None' || !has(self.from)", "networkPolicy.from has no effect with mode None", ".from"),
    )

    mode: Annotated[
        NetworkPolicyMode,
        Meta(
            description="`Restricted` makes a NetworkPolicy: the inference ports are open to `from`, the admin port to"
            " the operator's namespace and the chart's `metricsNamespaces`, and nothing else is. `None` makes none."
        ),
    ] = NetworkPolicyMode.RESTRICTED
    from_: Annotated[
        tuple[Peer, ...],
        Meta(
            max_length=32,
            description="Who may connect to the inference ports, as in a NetworkPolicy (`podSelector`,"
            " `namespaceSelector`, `ipBlock`): name the ingress controller's namespace too. Replicas of the service and"
            " the waiting room always may. Default: everybody.",
        ),
    ] = field(name="from", default=())
