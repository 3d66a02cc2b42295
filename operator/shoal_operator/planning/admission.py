"""What the answer to a write holds beside or instead of it: an admission policy's doing, and no rival's."""

from shoal_operator.manifests.desired import Kind
from shoal_operator.planning.drift import holds
from shoal_operator.planning.exact import foreign_settings, removal, settings_text
from shoal_operator.planning.observation import dig
from shoal_schema.declaring import Json

NO_IMAGE_VOLUMES = (
    "the API server of this cluster does not keep image volumes, so pods would find no model: oci:// and"
    " model.volume.image need Kubernetes 1.35, or 1.33 with the feature gate ImageVolume on servers and nodes."
    " Bring the model from a bucket, a registry or a claim (pvc://) instead"
)


def is_changed(kind: Kind, desired: Json, stored: Json) -> bool:
    """Return whether an object is still not as declared, as the answer to the write that declared it shows."""
    return not holds(desired, stored) or bool(removal(kind, desired, stored))


def changed_text(desired: Json, stored: Json) -> str:
    """Return what is said of an object that a policy changes at each write, or that loses what no server here knows."""
    if _image_volumes(desired) - _image_volumes(stored):
        return NO_IMAGE_VOLUMES
    settings = foreign_settings(desired, stored)
    if not settings:
        return (
            "the API server's answer to the operator's own write is not what was written: an admission policy or a"
            " webhook of this cluster changes it at each write. Ask who keeps it to spare this object; it is tried"
            " again every few minutes"
        )
    return (
        f"the API server's answer to the operator's own write still holds {settings_text(settings)}: an admission"
        " policy or a webhook of this cluster adds that at each write, so it is in force. Ask who keeps it to spare"
        " names that start with SHOAL_, which come from the spec; it is tried again every few minutes"
    )


def _image_volumes(deployment: Json) -> set[str]:
    volumes = dig(deployment, "spec", "template", "spec", "volumes", default=[])
    return {volume["name"] for volume in volumes if volume.get("image")}
