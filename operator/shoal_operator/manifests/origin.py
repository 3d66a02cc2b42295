"""The model's source as pods see it: a URI with a fixed version, or a mounted volume with a path."""

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import structs

from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import MLFLOW, LocationError, parse, shown, tracking_server
from shoal_schema.resource.model import Claim, ImageVolume, ModelVolume
from shoal_schema.resource.service import InferenceServiceSpec

_MOUNT_PATH = "/mnt/models"
"""A path that no runtime image uses, so that the mount hides nothing."""


def with_source(spec: InferenceServiceSpec, resolved: str = "") -> InferenceServiceSpec:
    """Return the spec with the model's source as pods see it.

    A model in a ``pvc://`` or ``oci://`` URI becomes a mounted volume and the URI of its files.

    Args:
        spec: spec as the user wrote it.
        resolved: the version of a mutable model name; empty for a fixed version, or while unknown.

    Raises:
        LocationError: the URI is invalid.
    """
    uri = resolved or spec.model.uri
    if uri is None:
        return spec
    where, volume = parse(uri), spec.model.volume
    # Mounted models are read as local files.
    if where.scheme == "pvc":
        volume = ModelVolume(mount_path=_MOUNT_PATH, persistent_volume_claim=Claim(claim_name=where.authority))
        uri = f"file://{_MOUNT_PATH}/{quote(where.path)}".rstrip("/")
    elif where.scheme == "oci":
        volume = ModelVolume(mount_path=_MOUNT_PATH, image=ImageVolume(reference=uri.removeprefix("oci://")))
        uri = f"file://{_MOUNT_PATH}"
    return structs.replace(spec, model=structs.replace(spec.model, uri=uri, volume=volume))


def registry(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the address of the registry of ``uri``, without credentials."""
    scheme = uri.partition(":")[0]
    # An invalid address may contain credentials anywhere.
    if fault(scheme, environment):
        return {}
    if scheme == "hf" and (hub := environment.get("HF_ENDPOINT")):
        return {"HF_ENDPOINT": shown(hub)}
    if scheme not in MLFLOW:
        return {}
    try:
        return {"MLFLOW_TRACKING_URI": tracking_server(environment)[0]}
    except LocationError:
        return {}
