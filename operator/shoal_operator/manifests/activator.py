"""The EndpointSlice that adds the activator to a Service's endpoints.

The Service keeps its selector, and Kubernetes maintains the slices of its pods. Routers read all slices with the
Service's label, including the activator's.
"""

from ipaddress import ip_address

from shoal_operator.manifests.labels import MANAGED_BY, SERVICE_NAME_LABEL, make_object
from shoal_operator.manifests.target import Hosting, Target
from shoal_schema.fields.declaring import Json

SLICE_MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
"""Kubernetes' controller ignores slices with another value."""


def make_activator_slice(target: Target, hosting: Hosting) -> Json:
    """Return the EndpointSlice of the activator."""
    labels = {SERVICE_NAME_LABEL: target.name, SLICE_MANAGED_BY_LABEL: MANAGED_BY}
    # A slice holds addresses of one family: that of the first activator.
    families = {address: ip_address(address).version for address in hosting.addresses}
    family = next(iter(families.values()), 4)
    addresses = sorted(address for address, version in families.items() if version == family)
    ready = {"ready": True, "serving": True, "terminating": False}
    return make_object(
        target,
        "EndpointSlice",
        "discovery.k8s.io/v1",
        labels=labels,
        addressType=f"IPv{family}",
        endpoints=[{"addresses": [address], "conditions": ready} for address in addresses],
        ports=[{"name": "http", "port": hosting.port, "protocol": "TCP", "appProtocol": "http"}],
    )
