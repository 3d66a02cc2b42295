"""The spec of an ``InferenceService``, whole."""

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
"""Fields of older releases, by the names that users write -> what they are called now."""
RENAMED_SINCE = "0.1.0"
"""The release that reads the new names only."""
ONCE_DEFAULTED = frozenset({"queue.maxItems"})
"""Those of them that an API server wrote into every object by itself, as it had a default."""
_QUEUED = (
    "(has(self.queue.maxRows) ? self.queue.maxRows : self.batching.maxBatchSize > 256"
    " ? 4 * self.batching.maxBatchSize : 1024)"
)
"""In CEL, what `queue_rows` says."""
_BATCHED = "(self.batching.inFlight + 1) * self.batching.maxBatchSize"


class InferenceServiceSpec(Section, frozen=True):
    """What a user asks for."""

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
            "scaling.minReplicas must be at least 1 with proxy.grpcPort: while no pod runs, requests are held that come"
            " by HTTP, and calls of gRPC would be refused",
            ".scaling.minReplicas",
        ),
        Rule(
            "!has(self.scaling) || self.scaling.minReplicas > 0 || !has(self.tls)",
            "scaling.minReplicas must be at least 1 with tls: while no pod runs, the waiting room holds what comes, and"
            " it has no certificate to show",
            ".scaling.minReplicas",
        ),
        *(
            Rule(
                f"!has(self.tls) || !has(self.tls.{name}) || !has(self.access) || !has(self.access.apiKeys)"
                f" || self.tls.{name} != self.access.apiKeys.secretName",
                f"access.apiKeys and tls.{name} must name different Secrets: each line of a certificate would be a key",
                ".access.apiKeys.secretName",
            )
            for name in ("secretName", "clientCaSecretName")
        ),
        Rule(
            "!has(self.scaling) || !has(self.scaling.targetQueueDepth)"
            f" || self.scaling.targetQueueDepth <= {_QUEUED} + {_BATCHED}",
            "scaling.targetQueueDepth must be what a pod can hold: at most queue.maxRows + (batching.inFlight + 1) *"
            " batching.maxBatchSize. Lower it, or raise queue.maxRows",
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

    model: ModelSpec
    runtime: RuntimeSpec = RuntimeSpec()
    proxy: ProxySpec = ProxySpec()
    batching: BatchingSpec = BatchingSpec()
    queue: QueueSpec = QueueSpec()
    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Pods to run. What `kubectl scale` and an HPA write. With `scaling` the operator writes it"
            " too: a number set by hand is taken at once, held for five minutes unless the load asks for more, and"
            " kept within `minReplicas` and `maxReplicas`. 0 parks a service that has no `scaling`.",
        ),
    ] = 1
    scaling: ScalingSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    route: RouteSpec | None = None
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    network_policy: NetworkPolicySpec = NetworkPolicySpec()
    access: AccessSpec | None = None
    pod: PodSpec = PodSpec()
