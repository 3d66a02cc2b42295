"""The waiting room among a Service's endpoints.

The Service keeps its selector, and the endpoints of its pods stay the cluster's own business. This is one EndpointSlice
more, which whoever routes to the Service reads together with those, by the label that names the Service.
"""

from collections.abc import Sequence
from ipaddress import ip_address

from shoal_operator.manifests.labels import MANAGED_BY, SERVICE_NAME_LABEL, make_object
from shoal_operator.manifests.target import Hosting, Target
from shoal_schema.declaring import Json

SLICE_MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
"""The cluster's own controller leaves slices alone that are another's."""


def make_waiting_slice(target: Target, hosting: Hosting) -> Json:
    """Return the EndpointSlice that leads to the rooms."""
    labels = {SERVICE_NAME_LABEL: target.name, SLICE_MANAGED_BY_LABEL: MANAGED_BY}
    family, rooms = _of_one_family(hosting.rooms)
    ready = {"ready": True, "serving": True, "terminating": False}
    return make_object(
        target,
        "EndpointSlice",
        "discovery.k8s.io/v1",
        labels=labels,
        addressType=family,
        endpoints=[{"addresses": [room], "conditions": ready} for room in rooms],
        ports=[{"name": "http", "port": hosting.port, "protocol": "TCP", "appProtocol": "http"}],
    )


def _of_one_family(rooms: Sequence[str]) -> tuple[str, list[str]]:
    """Return the family of the first address, and all addresses of that family."""
    families = {room: ip_address(room).version for room in rooms}
    family = next(iter(families.values()), 4)
    return f"IPv{family}", sorted(room for room, version in families.items() if version == family)
