"""Fields of the pods."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import FieldFault, SettingsSection
from shoal_schema.fields.rules import Every, In, Not, Rule
from shoal_schema.resource.passthrough import (
    OWN_CONTAINERS,
    OWN_VOLUMES,
    PROXY_PORTS,
    Containers,
    OpenObject,
    PullSecrets,
    StringMap,
    Tolerations,
    Volumes,
)


class PodSpec(SettingsSection, frozen=True):
    """Fields of the pods."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Every("volumes", Not(In("name", OWN_VOLUMES))),
            f"volumes must not be named {', '.join(OWN_VOLUMES)}: the operator uses these names",
            "volumes",
        ),
        *(
            Rule(Every(part, test), message, part)
            for part in ("containers", "initContainers")
            for test, message in (
                (
                    Not(In("name", OWN_CONTAINERS)),
                    f"containers must not be named {', '.join(OWN_CONTAINERS)}: the operator uses these names",
                ),
                (
                    Every("ports", Not(In("containerPort", PROXY_PORTS))),
                    "ports 8080 and 9090 of the pod are the proxy's: let the container listen on another port",
                ),
            )
        ),
    )

    # Metadata and placement.
    labels: Annotated[StringMap, Meta(description="Additional labels of the pods.")] | None = None
    annotations: Annotated[StringMap, Meta(description="Additional annotations of the pods.")] | None = None
    node_selector: Annotated[StringMap, Meta(description="Labels that a node must have to run the pods.")] | None = None
    tolerations: Annotated[Tolerations, Meta(description="Taints of nodes that the pods tolerate.")] = ()
    affinity: Annotated[OpenObject, Meta(description="Node and pod affinity of the pods.")] | None = None
    topology_spread_constraints: (
        Annotated[
            tuple[OpenObject, ...],
            Meta(
                max_length=16,
                description="Topology spread constraints of the pods. Default: over nodes and zones, where possible.",
            ),
        ]
        | None
    ) = None
    priority_class_name: (
        Annotated[str, Meta(max_length=253, description="PriorityClass of the pods. Default: the cluster's.")] | None
    ) = None
    runtime_class_name: (
        Annotated[str, Meta(max_length=253, description="RuntimeClass of the pods. Default: the node's own runtime.")]
        | None
    ) = None
    # Identity and permissions.
    service_account_name: (
        Annotated[
            str,
            Meta(
                max_length=253,
                description="ServiceAccount of the pods. Default: the operator creates one without permissions.",
            ),
        ]
        | None
    ) = None
    image_pull_secrets: Annotated[PullSecrets, Meta(description="Secrets with credentials of image registries.")] = ()
    security_context: (
        Annotated[
            OpenObject,
            Meta(description="Security context of the pods; its fields replace those of the restricted default."),
        ]
        | None
    ) = None
    scheduler_name: (
        Annotated[str, Meta(max_length=253, description="Scheduler that places the pods. Default: the cluster's.")]
        | None
    ) = None
    # Additional volumes and containers.
    volumes: Annotated[
        Volumes,
        Meta(
            description=(
                "Additional volumes, as in a pod, for `volumeMounts` of the containers. The operator's policy "
                "limits their types."
            )
        ),
    ] = ()
    containers: Annotated[
        Containers,
        Meta(
            description="Additional containers, as in a pod. They start after the runtime and the proxy, count for"
            " the pod's readiness, and stop with the pod; fields of `securityContext` replace those of"
            " the restricted default."
        ),
    ] = ()
    init_containers: Annotated[
        Containers,
        Meta(
            description=(
                "Additional init containers, as in a pod. They run before the init container that downloads the "
                "model. With `restartPolicy: Always`, a container runs as a sidecar."
            )
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Check that every volume and container has a name, as the API server does."""
        for name, given in (
            ("volumes", self.volumes),
            ("containers", self.containers),
            ("initContainers", self.init_containers),
        ):
            if not all(isinstance(each.get("name"), str) for each in given):
                raise FieldFault(name, "must each have a name, of type str")
