"""What is passed through to the pods."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.declaring import Section
from shoal_schema.resource.passthrough import OpenObject, PullSecrets, StringMap, Tolerations


class PodSpec(Section, frozen=True):
    """What is passed through to the pods."""

    labels: Annotated[StringMap, Meta(description="More labels of the pods.")] | None = None
    annotations: Annotated[StringMap, Meta(description="More annotations of the pods.")] | None = None
    node_selector: Annotated[StringMap, Meta(description="As in a pod.")] | None = None
    tolerations: Annotated[Tolerations, Meta(description="As in a pod.")] = ()
    affinity: Annotated[OpenObject, Meta(description="As in a pod.")] | None = None
    topology_spread_constraints: (
        Annotated[
            tuple[OpenObject, ...],
            Meta(max_length=16, description="As in a pod; default: spread over nodes and zones where possible."),
        ]
        | None
    ) = None
    priority_class_name: Annotated[str, Meta(max_length=253, description="As in a pod.")] | None = None
    runtime_class_name: Annotated[str, Meta(max_length=253, description="As in a pod.")] | None = None
    service_account_name: (
        Annotated[
            str,
            Meta(max_length=253, description="A ServiceAccount of your own; default: one without permissions is made."),
        ]
        | None
    ) = None
    image_pull_secrets: Annotated[PullSecrets, Meta(description="As in a pod.")] = ()
    security_context: (
        Annotated[
            OpenObject,
            Meta(description="The pod's security context; given fields replace those of the restricted default."),
        ]
        | None
    ) = None
