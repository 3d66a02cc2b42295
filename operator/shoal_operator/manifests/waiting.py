"""The waiting room among a Service's endpoints.

The Service keeps its selector, and the endpoints of its pods stay the cluster's own business. This is one EndpointSlice
more, which whoever routes to the Service reads together with those, by the label that names the Service.
"""

from ipaddress import ip_address

from shoal_operator.manifests.labels import MANAGED_BY, SERVICE_NAME_LABEL, make_object
from shoal_operator.manifests.target import Hosting, Target
from shoal_schema.declaring import Json

SLICE_MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
"""The cluster's own controller leaves slices alone that are another's."""


def make_waiting_slice(target: Target, hosting: Hosting) -> Json:
    """Return the EndpointSlice that leads to the rooms."""
    labels = {SERVICE_NAME_LABEL: target.name, SLICE_MANAGED_BY_LABEL: MANAGED_BY}
    # A slice holds addresses of one family: that of the first activator.
    families = {room: ip_address(room).version for room in hosting.rooms}
    family = next(iter(families.values()), 4)
    rooms = sorted(room for room, version in families.items() if version == family)
    ready = {"ready": True, "serving": True, "terminating": False}
    return make_object(
        target,
        "EndpointSlice",
        "discovery.k8s.io/v1",
        labels=labels,
        addressType=f"IPv{family}",
        endpoints=[{"addresses": [room], "conditions": ready} for room in rooms],
        ports=[{"name": "http", "port": hosting.port, "protocol": "TCP", "appProtocol": "http"}],
    )
