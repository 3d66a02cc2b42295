"""Policy of an install: lists of patterns that limit what specs may use.

In a pattern ``*`` matches any text, and ``$(NAMESPACE)`` is the service's namespace.
"""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.declaring import SettingsSection

Patterns = tuple[str, ...]


class Policy(SettingsSection, frozen=True):
    """Features of the cluster that specs may use."""

    # What containers run and where requests come from.
    images: Annotated[
        Patterns,
        Meta(
            description="Images of containers and models (`oci://`). The install's default images are always allowed."
        ),
    ] = ("*",)
    hosts: Annotated[
        Patterns,
        Meta(description="Hosts of an Ingress and host names of an HTTPRoute. A route without a host requires `*`."),
    ] = ("*",)
    annotations: Annotated[
        Patterns,
        Meta(description="Annotations of the Ingress and the Service ([patterns](#patterns))."),
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
    services: Annotated[Patterns, Meta(description="Types of a service's Service.")] = ("ClusterIP",)
    webhook_hosts: Annotated[
        Patterns,
        Meta(description="Hosts in `asynchronous.webhooks.allowedHosts`, to which proxies send results."),
    ] = ("*",)
    # What pods may read.
    secrets: Annotated[
        Patterns,
        Meta(
            description="Secrets that any field of a spec names: variables, volumes, models, registries, certificates."
        ),
    ] = ("shoal-*",)
    service_accounts: Annotated[
        Patterns, Meta(description="ServiceAccounts, in addition to the one that the operator creates.")
    ] = ()
    volumes: Annotated[
        Patterns, Meta(description="Types of volumes and of sources of projected volumes, in addition to `emptyDir`.")
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
    # How pods are scheduled and run.
    priority_classes: Annotated[Patterns, Meta(description="PriorityClasses.")] = ("shoal-*",)
    runtime_classes: Annotated[Patterns, Meta(description="RuntimeClasses.")] = ("*",)
    pod_labels: Annotated[Patterns, Meta(description="Names of pod labels.")] = ("*",)
    pod_annotations: Annotated[Patterns, Meta(description="Names of pod annotations.")] = ("*",)
    root: Annotated[
        bool,
        Meta(
            description="Whether containers may exceed the restricted Pod Security level: run as root or"
            " privileged, add capabilities, use ports of the node."
        ),
    ] = False
