"""Where a model comes from, as pods are told: a name at its version; what the cluster mounts: a volume and a path."""

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import structs

from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import MLFLOW, LocationError, parse, shown, tracking_server
from shoal_schema.resource.model import Claim, ImageVolume, ModelVolume
from shoal_schema.resource.service import InferenceServiceSpec

_MOUNT_PATH = "/mnt/models"
"""Where no image of a runtime holds anything that the mount would hide."""


def placed(spec: InferenceServiceSpec, resolved: str = "") -> InferenceServiceSpec:
    """Return the spec with the model's URI as pods read it.

    Args:
        spec: what the user wrote.
        resolved: the version of a name that moves; empty where the URI names one already, or none is known.

    Raises:
        LocationError: the URI names no model.
    """
    uri = resolved or spec.model.uri
    if uri is None:
        return spec
    where, volume = parse(uri), spec.model.volume
    if where.scheme == "pvc":
        volume = ModelVolume(mount_path=_MOUNT_PATH, persistent_volume_claim=Claim(claim_name=where.authority))
        uri = f"file://{_MOUNT_PATH}/{quote(where.path)}".rstrip("/")
    elif where.scheme == "oci":
        volume = ModelVolume(mount_path=_MOUNT_PATH, image=ImageVolume(reference=uri.removeprefix("oci://")))
        uri = f"file://{_MOUNT_PATH}"
    return structs.replace(spec, model=structs.replace(spec.model, uri=uri, volume=volume))


def registry(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the operator knows of the registry that keeps ``uri``: its address, and never credentials."""
    scheme = uri.partition(":")[0]
    if fault(scheme, environment):  # of an address that is none it is not known what is secret
        return {}
    if scheme == "hf" and (hub := environment.get("HF_ENDPOINT")):
        return {"HF_ENDPOINT": shown(hub)}
    if scheme not in MLFLOW:
        return {}
    try:
        return {"MLFLOW_TRACKING_URI": tracking_server(environment)[0]}
    except LocationError:
        return {}
