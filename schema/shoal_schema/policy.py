"""What services may ask of the cluster, as whoever installs the operator decides: lists of patterns.

In a pattern ``*`` stands for any text, and ``$(NAMESPACE)`` for the service's namespace.
"""

from typing import Annotated

from msgspec import Meta

from shoal_schema.declaring import Section

Patterns = tuple[str, ...]


class Policy(Section, frozen=True):
    """What services may ask of the cluster."""

    images: Annotated[
        Patterns, Meta(description="Images of containers, and of models (`oci://`). The install's own may always.")
    ] = ("*",)
    hosts: Annotated[
        Patterns,
        Meta(description="Hosts of an Ingress, host names of an HTTPRoute; a route without one asks for `*`."),
    ] = ("*",)
    annotations: Annotated[
        Patterns,
        Meta(
            description="Names of annotations of the Ingress and of the Service, with plain values: no blanks, quotes,"
            " braces or semicolons. `NAME=*` allows any value."
        ),
    ] = (
        "cert-manager.io/cluster-issuer",
        "cert-manager.io/duration",
        "cert-manager.io/issuer*",
        "cert-manager.io/renew-before",
        "haproxy.org/timeout-*",
        "nginx.ingress.kubernetes.io/proxy-*-timeout",
        "nginx.ingress.kubernetes.io/proxy-body-size",
        "nginx.ingress.kubernetes.io/proxy-request-buffering",
        "nginx.org/client-max-body-size",
        "nginx.org/proxy-*-timeout",
        "traefik.ingress.kubernetes.io/router.entrypoints",
        "traefik.ingress.kubernetes.io/router.tls",
    )
    services: Annotated[Patterns, Meta(description="Types of the Service.")] = ("ClusterIP",)
    secrets: Annotated[
        Patterns,
        Meta(description="Secrets that a spec names, wherever: variables, volumes, models, registries, certificates."),
    ] = ("shoal-*",)
    service_accounts: Annotated[
        Patterns, Meta(description="ServiceAccounts, besides the one that is made for the service.")
    ] = ()
    volumes: Annotated[
        Patterns, Meta(description="Kinds of volumes, and of sources of projected ones, besides `emptyDir`.")
    ] = (
        "clusterTrustBundle",
        "configMap",
        "downwardAPI",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
    priority_classes: Annotated[Patterns, Meta(description="PriorityClasses.")] = ("shoal-*",)
    runtime_classes: Annotated[Patterns, Meta(description="RuntimeClasses.")] = ("*",)
    pod_labels: Annotated[Patterns, Meta(description="Names of labels of the pods.")] = ("*",)
    pod_annotations: Annotated[Patterns, Meta(description="Names of annotations of the pods.")] = ("*",)
    root: Annotated[
        bool,
        Meta(
            description="Containers may do what the restricted Pod Security level refuses: be root or privileged, add"
            " capabilities, take ports of the node."
        ),
    ] = False
