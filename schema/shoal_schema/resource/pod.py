"""What is passed through to the pods."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import FieldFault, Rule, Section
from shoal_schema.resource.passthrough import (
    OWN_CONTAINERS,
    OWN_VOLUMES,
    Containers,
    OpenObject,
    PullSecrets,
    StringMap,
    Tolerations,
    Volumes,
)


class PodSpec(Section, frozen=True):
    """What is passed through to the pods."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.volumes) || self.volumes.all(v, !(v.name in {[*OWN_VOLUMES]}))",
            f"volumes of these names are the operator's own: {', '.join(OWN_VOLUMES)}; choose others",
            ".volumes",
        ),
        *(
            Rule(f"!has(self.{part}) || self.{part}.all(c, {test})", message, f".{part}")
            for part in ("containers", "initContainers")
            for test, message in (
                (
                    f"!(c.name in {[*OWN_CONTAINERS]})",
                    f"containers of these names are the operator's own: {', '.join(OWN_CONTAINERS)}; choose others",
                ),
                (
                    "!has(c.ports) || c.ports.all(p, !has(p.containerPort) || !(p.containerPort in [8080, 9090]))",
                    "ports 8080 and 9090 are the proxy's, in the same pod: let the container listen on another port",
                ),
            )
        ),
    )

    labels: Annotated[StringMap, Meta(description="More labels of the pods.")] | None = None
    annotations: Annotated[StringMap, Meta(description="More annotations of the pods.")] | None = None
    node_selector: Annotated[StringMap, Meta(description="Labels that a node must have to run the pods.")] | None = None
    tolerations: Annotated[Tolerations, Meta(description="Taints of nodes that the pods tolerate, as in a pod.")] = ()
    affinity: (
        Annotated[
            OpenObject, Meta(description="Nodes and pods that the pods are placed near to, or away from, as in a pod.")
        ]
        | None
    ) = None
    topology_spread_constraints: (
        Annotated[
            tuple[OpenObject, ...],
            Meta(
                max_length=16,
                description="How the pods are spread, as in a pod. Default: over nodes and zones, where possible.",
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
    service_account_name: (
        Annotated[
            str,
            Meta(max_length=253, description="A ServiceAccount of your own; default: one without permissions is made."),
        ]
        | None
    ) = None
    image_pull_secrets: Annotated[PullSecrets, Meta(description="Secrets with credentials of image registries.")] = ()
    security_context: (
        Annotated[
            OpenObject,
            Meta(description="The pod's security context; given fields replace those of the restricted default."),
        ]
        | None
    ) = None
    scheduler_name: (
        Annotated[str, Meta(max_length=253, description="Scheduler that places the pods. Default: the cluster's.")]
        | None
    ) = None
    volumes: Annotated[
        Volumes,
        Meta(
            description="More volumes, as in a pod, for `runtime.volumeMounts` and for the containers here. Which kinds"
            " may be used is up to the install (docs/how-to/policy.md)."
        ),
    ] = ()
    containers: Annotated[
        Containers,
        Meta(
            description="More containers, as in a pod; they start after the runtime and the proxy, and stop with them."
            " The pod is ready while they are, too. Fields of `securityContext` replace those of the restricted"
            " default."
        ),
    ] = ()
    init_containers: Annotated[
        Containers,
        Meta(
            description="More init containers, as in a pod, before the one that fetches the model. With `restartPolicy:"
            " Always` one runs beside all others, and stops after them."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse what the operator could not tell apart, as an API server does."""
        for name, given in (
            ("volumes", self.volumes),
            ("containers", self.containers),
            ("initContainers", self.init_containers),
        ):
            if not all(isinstance(each.get("name"), str) for each in given):
                raise FieldFault(name, "must each have a name, of type str")
