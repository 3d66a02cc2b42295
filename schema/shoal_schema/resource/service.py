"""The spec of an ``InferenceService``."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.rules import (
    Compared,
    Custom,
    Every,
    Given,
    In,
    Not,
    Rule,
    any_of,
    different,
    excludes,
    value_at,
)
from shoal_schema.resource.access import AccessSpec
from shoal_schema.resource.asynchronous import AsynchronousSpec
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.network import NetworkPolicySpec, TlsSpec
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.proxy import ProxySpec
from shoal_schema.resource.rollout import RolloutSpec
from shoal_schema.resource.route import RouteSpec, ServiceSpec
from shoal_schema.resource.runtime import OWN_RUNTIME_ONLY, RuntimeSpec
from shoal_schema.resource.traffic import BatchingSpec, QueueSpec, ScalingSpec, queue_rows

RENAMED: Mapping[str, str] = {
    "queue.maxItems": "queue.maxRows",
    "runtime.forwardHeaders": "proxy.forwardHeaders",
    "scaling.targetRows": "scaling.targetQueueDepth",
}
"""Fields of older releases -> their present names, in JSON."""
RENAMED_SINCE = "0.1.0"
"""The first release that reads only the new names."""
ONCE_DEFAULTED = frozenset({"queue.maxItems"})
"""Renamed fields that had a default, which API servers wrote into every object."""
# Capacity of a pod, for the rule on scaling.targetQueueDepth.
_QUEUED = (
    "(has(self.queue.maxRows) ? self.queue.maxRows : self.batching.maxBatchSize > 256"
    " ? 4 * self.batching.maxBatchSize : 1024)"
)
"""`queue_rows` in CEL."""
_BATCHED = "(self.batching.inFlight + 1) * self.batching.maxBatchSize"


def _no_container_has(spec: "InferenceServiceSpec", port: str, part: str) -> bool:
    number, containers = value_at(spec, port), value_at(spec, f"pod.{part}") or ()
    return number is None or all(Every("ports", Not(In("containerPort", (number,)))).holds(each) for each in containers)


class InferenceServiceSpec(SettingsSection, frozen=True):
    """Desired state of the service."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Not(Compared("queue.maxRows", "<", "batching.maxBatchSize")),
            "queue.maxRows must hold at least one batch of batching.maxBatchSize rows",
            "queue.maxRows",
        ),
        Rule(
            any_of(Given("runtime.port"), Given("model.uri")),
            "model.uri is required, unless runtime.port names a foreign runtime",
            "model.uri",
        ),
        different(
            "proxy.grpcPort",
            "runtime.port",
            "proxy.grpcPort and runtime.port must differ: both listen in the same pod",
        ),
        *(
            Rule(
                Custom(
                    f"!has(self.{port}) || !has(self.pod.{part}) || self.pod.{part}.all(c, !has(c.ports)"
                    f" || c.ports.all(p, !has(p.containerPort) || p.containerPort != self.{port}))",
                    partial(_no_container_has, port=port, part=part),
                ),
                f"a container of pod.{part} must not have the port of {port}: both listen in the same pod",
                f"pod.{part}",
            )
            for port in ("runtime.port", "proxy.grpcPort")
            for part in ("containers", "initContainers")
        ),
        *(
            Rule(
                any_of(Not(In("scaling.minReplicas", (0,))), Not(Given(other))),
                f"scaling.minReplicas must be at least 1 with {other}: {why}",
                "scaling.minReplicas",
            )
            for other, why in (
                ("proxy.grpcPort", "the activator holds HTTP requests only"),
                ("tls", "the activator has no certificate"),
            )
        ),
        *(
            different(
                "access.apiKeys.secretName",
                f"tls.{name}",
                f"access.apiKeys and tls.{name} must name different Secrets: each line of the certificate would be"
                " a key",
            )
            for name in ("secretName", "clientCaSecretName")
        ),
        Rule(
            Custom(
                "!has(self.scaling) || !has(self.scaling.targetQueueDepth)"
                f" || self.scaling.targetQueueDepth <= {_QUEUED} + {_BATCHED}",
                lambda spec: (
                    spec.scaling is None
                    or (spec.scaling.target_queue_depth or 0)
                    <= queue_rows(spec.queue, spec.batching)
                    + (spec.batching.in_flight + 1) * spec.batching.max_batch_size
                ),
            ),
            "scaling.targetQueueDepth must be at most the rows that a pod can hold: queue.maxRows +"
            " (batching.inFlight + 1) * batching.maxBatchSize. Lower it, or raise queue.maxRows",
            "scaling.targetQueueDepth",
        ),
        *(
            excludes(name, "runtime.port", f"{name} {OWN_RUNTIME_ONLY}")
            for name in (
                *("model.uri", "model.checksum", "model.format", "model.handler", "model.parameters"),
                *("model.allowPickle", "model.trustedTypes", "model.resources", "model.secretName"),
                *("model.caBundle", "batching.allowedBatchSizes"),
            )
        ),
    )

    # What runs.
    model: ModelSpec
    runtime: RuntimeSpec = RuntimeSpec()
    proxy: ProxySpec = ProxySpec()
    batching: BatchingSpec = BatchingSpec()
    queue: QueueSpec = QueueSpec()
    asynchronous: AsynchronousSpec | None = None
    # How many replicas, and how they are replaced.
    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Number of pods, as set by `kubectl scale` or an HPA. With `scaling` the operator sets it:"
            " it holds a manual change for five minutes unless the load needs more, within"
            " `minReplicas` and `maxReplicas`. 0 stops all pods of a service without `scaling`.",
        ),
    ] = 1
    scaling: ScalingSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    # How clients reach them.
    route: RouteSpec | None = None
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    network_policy: NetworkPolicySpec = NetworkPolicySpec()
    access: AccessSpec | None = None
    pod: PodSpec = PodSpec()
