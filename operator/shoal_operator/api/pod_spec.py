"""What is passed through to the pods."""

from dataclasses import dataclass

from shoal_operator.api import passthrough
from shoal_operator.api.fields import Json, spec_field


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """What is passed through to the pods."""

    labels: Json | None = spec_field("More labels of the pods.", default=None, raw=passthrough.STRING_MAP)
    annotations: Json | None = spec_field("More annotations of the pods.", default=None, raw=passthrough.STRING_MAP)
    node_selector: Json | None = spec_field("As in a pod.", default=None, raw=passthrough.STRING_MAP)
    tolerations: tuple[Json, ...] = spec_field("As in a pod.", default=(), raw=passthrough.TOLERATIONS)
    affinity: Json | None = spec_field("As in a pod.", default=None, raw=passthrough.OPEN_OBJECT)
    topology_spread_constraints: tuple[Json, ...] | None = spec_field(
        "As in a pod; default: spread over nodes and zones where possible.",
        default=None,
        raw=passthrough.open_list(16),
    )
    priority_class_name: str | None = spec_field("As in a pod.", default=None, max_length=253)
    runtime_class_name: str | None = spec_field("As in a pod.", default=None, max_length=253)
    service_account_name: str | None = spec_field(
        "A ServiceAccount of your own; default: one without permissions is made.",
        default=None,
        max_length=253,
    )
    image_pull_secrets: tuple[Json, ...] = spec_field("As in a pod.", default=(), raw=passthrough.PULL_SECRETS)
    security_context: Json | None = spec_field(
        "The pod's security context; given fields replace those of the restricted default.",
        default=None,
        raw=passthrough.OPEN_OBJECT,
    )
