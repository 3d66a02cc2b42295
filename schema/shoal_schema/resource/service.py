"""The spec of an ``InferenceService``."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import Rule, Section
from shoal_schema.resource.access import AccessSpec
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.network import NetworkPolicySpec, TlsSpec
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.route import RouteSpec, ServiceSpec
from shoal_schema.resource.runtime import OWN_RUNTIME_ONLY, ProxySpec, RuntimeSpec
from shoal_schema.resource.traffic import BatchingSpec, QueueSpec, RolloutSpec, ScalingSpec

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


class InferenceServiceSpec(Section, frozen=True):
    """Desired state of the service."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.queue.maxRows) || self.batching.maxBatchSize <= self.queue.maxRows",
            "queue.maxRows must hold at least one batch of batching.maxBatchSize rows",
            ".queue.maxRows",
        ),
        Rule(
            "has(self.runtime.port) || has(self.model.uri)",
            "model.uri is required, unless runtime.port names a foreign runtime",
            ".model.uri",
        ),
        Rule(
            "!has(self.runtime.port) || !has(self.proxy.grpcPort) || self.runtime.port != self.proxy.grpcPort",
            "proxy.grpcPort and runtime.port must differ: both listen in the same pod",
            ".proxy.grpcPort",
        ),
        *(
            Rule(
                f"!has(self.{port}) || !has(self.pod.{part}) || self.pod.{part}.all(c, !has(c.ports)"
                f" || c.ports.all(p, !has(p.containerPort) || p.containerPort != self.{port}))",
                f"a container of pod.{part} must not have the port of {port}: both listen in the same pod",
                f".pod.{part}",
            )
            for port in ("runtime.port", "proxy.grpcPort")
            for part in ("containers", "initContainers")
        ),
        Rule(
            "!has(self.scaling) || self.scaling.minReplicas > 0 || !has(self.proxy.grpcPort)",
            "scaling.minReplicas must be at least 1 with proxy.grpcPort: the activator holds HTTP requests only",
            ".scaling.minReplicas",
        ),
        Rule(
            "!has(self.scaling) || self.scaling.minReplicas > 0 || !has(self.tls)",
            "scaling.minReplicas must be at least 1 with tls: the activator has no certificate",
            ".scaling.minReplicas",
        ),
        *(
            Rule(
                f"!has(self.tls) || !has(self.tls.{name}) || !has(self.access) || !has(self.access.apiKeys)"
                f" || self.tls.{name} != self.access.apiKeys.secretName",
                f"access.apiKeys and tls.{name} must name different Secrets: otherwise each line of the "
                "certificate would be accepted as a key",
                ".access.apiKeys.secretName",
            )
            for name in ("secretName", "clientCaSecretName")
        ),
        Rule(
            "!has(self.scaling) || !has(self.scaling.targetQueueDepth)"
            f" || self.scaling.targetQueueDepth <= {_QUEUED} + {_BATCHED}",
            "scaling.targetQueueDepth must be at most the rows that a pod can hold: queue.maxRows +"
            " (batching.inFlight + 1) * batching.maxBatchSize. Lower it, or raise queue.maxRows",
            ".scaling.targetQueueDepth",
        ),
        *(
            Rule(f"!has(self.runtime.port) || {test}", f"{name} {OWN_RUNTIME_ONLY}", f".{name}")
            for name, test in (
                ("model.uri", "!has(self.model.uri)"),
                ("model.checksum", "!has(self.model.checksum)"),
                ("model.format", "self.model.format == 'Auto'"),
                ("model.handler", "!has(self.model.handler)"),
                ("model.parameters", "!has(self.model.parameters)"),
                ("model.allowPickle", "!self.model.allowPickle"),
                ("model.trustedTypes", "!has(self.model.trustedTypes)"),
                ("model.resources", "!has(self.model.resources)"),
                ("model.secretName", "!has(self.model.secretName)"),
                ("model.caBundle", "!has(self.model.caBundle)"),
                ("batching.allowedBatchSizes", "!has(self.batching.allowedBatchSizes)"),
            )
        ),
    )

    # What runs.
    model: ModelSpec
    runtime: RuntimeSpec = RuntimeSpec()
    proxy: ProxySpec = ProxySpec()
    batching: BatchingSpec = BatchingSpec()
    queue: QueueSpec = QueueSpec()
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
