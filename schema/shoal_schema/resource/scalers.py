"""Others' autoscalers that the operator writes for a service."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import Rule, Section
from shoal_schema.metrics import DEMAND


class HorizontalPodAutoscalerSpec(Section, frozen=True):
    """An HPA (`autoscaling/v2`); an adapter has to tell it the pods' metrics (`custom.metrics.k8s.io`)."""

    metric_name: Annotated[
        str,
        Meta(
            pattern=r"^[a-zA-Z_:][a-zA-Z0-9_.:-]*\Z",
            max_length=253,
            description=f"As what the adapter tells each pod's `{DEMAND.name}`.",
        ),
    ] = DEMAND.name


class ScaledObjectSpec(Section, frozen=True):
    """A ScaledObject of KEDA, which asks Prometheus."""

    server_address: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s@/?#]+([/?#][^\s]*)?\Z",
            max_length=2048,
            description="Where Prometheus answers, such as `http://prometheus.monitoring:9090`, without credentials.",
        ),
    ]
    query: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=4096,
                description=f"What to ask it. Default: the sum of `{DEMAND.name}` over the service's pods, by labels"
                " `namespace` and `pod`.",
            ),
        ]
        | None
    ) = None


class ScalersSpec(Section, frozen=True):
    """The autoscaler that the operator writes."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.horizontalPodAutoscaler) != has(self.scaledObject)",
            "give horizontalPodAutoscaler or scaledObject; leave external out to write the autoscaler yourself",
            "",
        ),
    )

    target_percent: Annotated[
        int, Meta(ge=1, le=100, description="How much of what a pod can serve it is to be asked for.")
    ] = 80
    horizontal_pod_autoscaler: HorizontalPodAutoscalerSpec | None = None
    scaled_object: ScaledObjectSpec | None = None
