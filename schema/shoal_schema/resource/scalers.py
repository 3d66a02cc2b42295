"""Autoscalers of Kubernetes and KEDA that the operator creates for a service."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.rules import Rule, one_of
from shoal_schema.interfaces.metrics import DEMAND


class HorizontalPodAutoscalerSpec(SettingsSection, frozen=True):
    """An HPA (`autoscaling/v2`). It needs an adapter that serves the pods' metrics (`custom.metrics.k8s.io`)."""

    metric_name: Annotated[
        str,
        Meta(
            pattern=r"^[a-zA-Z_:][a-zA-Z0-9_.:-]*\Z",
            max_length=253,
            description=f"Name under which the adapter serves each pod's `{DEMAND.name}`.",
        ),
    ] = DEMAND.name


class ScaledObjectSpec(SettingsSection, frozen=True):
    """A ScaledObject of KEDA that queries Prometheus."""

    server_address: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s@/?#]+([/?#][^\s]*)?\Z",
            max_length=2048,
            description="URL of Prometheus without credentials, such as `http://prometheus.monitoring:9090`.",
        ),
    ]
    query: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=4096,
                description=(
                    f"Prometheus query of the metric. Default: the sum of `{DEMAND.name}` over the service's pods, "
                    "by"
                    " the labels `namespace` and `pod`."
                ),
            ),
        ]
        | None
    ) = None


class ScalersSpec(SettingsSection, frozen=True):
    """The autoscaler that the operator creates."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        one_of(
            ("horizontalPodAutoscaler", "scaledObject"), "external", "remove external to create the autoscaler yourself"
        ),
    )

    target_percent: Annotated[
        int, Meta(ge=1, le=100, description="Target utilization of a pod, in percent of its capacity.")
    ] = 80
    # Exactly one of these.
    horizontal_pod_autoscaler: HorizontalPodAutoscalerSpec | None = None
    scaled_object: ScaledObjectSpec | None = None
