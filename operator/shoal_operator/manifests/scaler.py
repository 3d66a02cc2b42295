"""External autoscalers: an HPA, or a ScaledObject of KEDA. Both write the service's ``/scale``.

Their metric is demand divided by capacity, which may exceed 1. With a metric of at most 1, such as utilization, an HPA
would at most double the pods in one step. The sum of the metric, divided by the target, is the required number of pods,
regardless of the current number.
"""

import json

from shoal_operator.manifests.labels import make_object
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.metrics import DEMAND
from shoal_schema.resource import API_VERSION
from shoal_schema.resource.scalers import HorizontalPodAutoscalerSpec, ScaledObjectSpec
from shoal_schema.resource.traffic import ScalingSpec

HPA_API_VERSION = "autoscaling/v2"
SCALED_OBJECT_API_VERSION = "keda.sh/v1alpha1"


def make_horizontal_pod_autoscaler(target: Target, scaling: ScalingSpec, spec: HorizontalPodAutoscalerSpec) -> Json:
    """Return the HPA of a service, without ``behavior``, which users may add."""
    # In thousandths, as quantities allow no percent.
    average = {"type": "AverageValue", "averageValue": f"{10 * _percent(scaling)}m"}
    body: Json = {
        "scaleTargetRef": _scale_target(target),
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": spec.metric_name}, "target": average}}],
    }
    return make_object(target, "HorizontalPodAutoscaler", HPA_API_VERSION, spec=body)


def make_scaled_object(target: Target, scaling: ScalingSpec, spec: ScaledObjectSpec) -> Json:
    """Return the ScaledObject of a service, without ``advanced`` and ``fallback``, which users may add."""
    # Match the full pattern of pod names, as another service's name may start with this one's.
    pods = json.dumps(f"{target.name}-[a-z0-9]+-[a-z0-9]{{5}}")
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": spec.server_address,
            "query": spec.query or f"sum({DEMAND.name}{{namespace={json.dumps(target.namespace)},pod=~{pods}}})",
            "threshold": f"{_percent(scaling) / 100:g}",
            # A missing result is not 0: replicas do not change.
            "ignoreNullValues": "false",
        },
    }
    body: Json = {
        "scaleTargetRef": _scale_target(target),
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "triggers": [trigger],
    }
    return make_object(target, "ScaledObject", SCALED_OBJECT_API_VERSION, spec=body)


def _percent(scaling: ScalingSpec) -> int:
    assert scaling.external is not None
    return scaling.external.target_percent


def _scale_target(target: Target) -> Json:
    return {"apiVersion": API_VERSION, "kind": target.kind, "name": target.name}
