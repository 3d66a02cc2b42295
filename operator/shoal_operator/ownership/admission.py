"""Messages on changes that admission policies and webhooks make to writes."""

from shoal_operator.children.exact import foreign_settings, settings_text
from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json

NO_IMAGE_VOLUMES = (
    "the API server drops image volumes, so pods would have no model: oci:// and model.volume.image require"
    " Kubernetes 1.35, or 1.33 with the feature gate ImageVolume on servers and nodes. Use a bucket, a registry or a"
    " claim (pvc://) instead"
)


def changed_text(desired: Json, stored: Json) -> str:
    """Return the message for an object that was stored with changes."""
    if _image_volumes(desired) - _image_volumes(stored):
        return NO_IMAGE_VOLUMES
    settings = foreign_settings(desired, stored)
    if not settings:
        return (
            "an admission policy or webhook changes this object at each write. Exempt the object from the policy; the"
            " operator retries every few minutes"
        )
    return (
        f"an admission policy or webhook adds {settings_text(settings)} at each write, so these settings are in effect."
        " Exempt names that start with SHOAL_, which come from the spec; the operator retries every few minutes"
    )


def _image_volumes(deployment: Json) -> set[str]:
    volumes = dig(deployment, "spec", "template", "spec", "volumes", default=[])
    return {volume["name"] for volume in volumes if volume.get("image")}
