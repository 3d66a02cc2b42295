"""The ``InferenceService`` that objects are made for."""

from dataclasses import dataclass, field

from shoal_schema.declaring import Json
from shoal_schema.resource import API_VERSION, KIND
from shoal_schema.resource.service import InferenceServiceSpec

INTERNAL_URL = "http://$(NAME).$(NAMESPACE).svc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the operator's own settings add to every service.

    Args:
        listen_host: the address that proxies bind; ``::`` is every address of either family,
            ``$(POD_IP)`` the pod's own, where pods share one network.
        admin_namespaces: namespaces that may reach the proxies' admin port (metrics, drain); empty
            means all.
        operator: what this install is called: the namespace of its Lease.
        service_url: where callers reach a Service without a route; `$(NAME)`, `$(NAMESPACE)` and
            `$(CLUSTER_IP)` stand for the Service's own.
    """

    proxy_image: str
    runtime_image: str
    listen_host: str = "::"
    admin_namespaces: tuple[str, ...] = ()
    operator: str = "default"
    service_url: str = INTERNAL_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One service: who it is, what its user asks for, and the operator's defaults."""

    name: str
    namespace: str
    uid: str
    spec: InferenceServiceSpec
    defaults: Defaults = field(repr=False)

    @property
    def foreign(self) -> bool:
        """Whether the runtime container is somebody else's server."""
        return self.spec.runtime.port is not None

    @property
    def downloads(self) -> bool:
        """Whether the pod fetches the model before it starts."""
        return (self.spec.model.uri or "").startswith(("http://", "https://"))

    @property
    def replicas(self) -> int:
        """The pods to run: ``spec.replicas``, kept within the bounds of ``spec.scaling``."""
        if self.spec.scaling is None:
            return self.spec.replicas
        scaling = self.spec.scaling
        return max(scaling.min_replicas, min(self.spec.replicas, scaling.max_replicas))

    @property
    def owner_reference(self) -> Json:
        """The reference that lets the cluster delete the objects with the service."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
