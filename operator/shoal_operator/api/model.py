"""The spec of an ``InferenceService``: every field, its range, its default and its meaning.

The variables of ``docs/contracts.md`` section 3 and the fields here are the same table; a test
compares them. Numbers are integers with the unit in the name, since two API servers may print one
float in two ways. Cross-field rules are CEL, checked by the API server before anything is stored.
"""

from dataclasses import dataclass
from typing import ClassVar

from shoal_operator.api.fields import Rule, spec_field
from shoal_operator.api.model_spec import ModelSpec
from shoal_operator.api.pod_spec import PodSpec
from shoal_operator.api.route_spec import RouteSpec
from shoal_operator.api.runtime_spec import OWN_RUNTIME_ONLY, ProxySpec, RuntimeSpec
from shoal_operator.api.traffic_spec import BatchingSpec, QueueSpec, RolloutSpec, ScalingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceServiceSpec:
    """What a user asks for."""

    RULES: ClassVar = (
        Rule(
            "self.batching.maxBatchSize <= self.queue.maxItems",
            "queue.maxItems must hold at least one batch of batching.maxBatchSize rows",
            ".queue.maxItems",
        ),
        Rule(
            "has(self.runtime.port) || has(self.model.uri)",
            "model.uri is required, unless runtime.port names a foreign runtime",
            ".model.uri",
        ),
        *(
            Rule(
                f"!has(self.runtime.port) || {test}",
                f"{name} {OWN_RUNTIME_ONLY}",
                f".{name}",
            )
            for name, test in (
                ("model.uri", "!has(self.model.uri)"),
                ("model.checksum", "!has(self.model.checksum)"),
                ("model.format", "self.model.format == 'Auto'"),
                ("model.handler", "!has(self.model.handler)"),
                ("model.parameters", "!has(self.model.parameters)"),
                ("model.allowPickle", "!self.model.allowPickle"),
                ("model.resources", "!has(self.model.resources)"),
                ("batching.allowedBatchSizes", "!has(self.batching.allowedBatchSizes)"),
            )
        ),
    )

    model: ModelSpec = spec_field("The model: where it lies and how it is read.")
    runtime: RuntimeSpec = spec_field("The container that runs the model.", default_factory=RuntimeSpec)
    proxy: ProxySpec = spec_field("The container that queues and batches.", default_factory=ProxySpec)
    batching: BatchingSpec = spec_field("How requests become batches.", default_factory=BatchingSpec)
    queue: QueueSpec = spec_field(
        "How much work may wait in one pod; more is answered with 503 and `Retry-After`.",
        default_factory=QueueSpec,
    )
    replicas: int = spec_field(
        "Pods to run. What `kubectl scale` and an HPA write. With `scaling` the operator writes it"
        " too: a number set by hand is taken at once, held for five minutes unless the load asks"
        " for more, and kept within `minReplicas` and `maxReplicas`. 0 parks a service that has no"
        " `scaling`.",
        default=1,
        minimum=0,
        maximum=10000,
    )
    scaling: ScalingSpec | None = spec_field(
        "Replicas that follow the queue. Leave it out to set `replicas` by hand or by an HPA.",
        default=None,
    )
    rollout: RolloutSpec = spec_field("How pods are replaced when the spec changes.", default_factory=RolloutSpec)
    route: RouteSpec | None = spec_field("How callers from outside the cluster reach the service.", default=None)
    pod: PodSpec = spec_field("What is passed through to the pods.", default_factory=PodSpec)
