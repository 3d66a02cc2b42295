"""The status of upgrades: images, and upgrades that are pending, running or failed."""

from shoal_operator.children.observation import dig
from shoal_operator.rollout.upgrade import Upgrade, images_of
from shoal_operator.status.blocked import Verdict
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.pods import deadline_exceeded
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import Reason, Status

_PENDING = (
    "pods ({now}) wait for the upgrade to this release. Services are upgraded oldest first, within the limits of "
    "the chart's value upgrade, and not while another service is UpgradeFailed. A change of the spec upgrades "
    "this service at once"
)
_UPGRADING = "pods are being replaced by those of this operator's release ({now}) since {since}"
_FAILED = (
    "not ready since its upgrade started ({since}), so no other upgrade starts. Ready states the reason. Change the"
    " spec, set the previous images in runtime.image and proxy.image, or set other images in the operator's chart"
)


def upgrade_status(evidence: Evidence, *, ready: bool) -> Json:
    """Return ``status.images`` and ``status.upgrade``; for an invalid spec, the stored ones."""
    stored = dig(evidence.observation.resource, "status", default={})
    if evidence.target is None:
        return {name: stored[name] for name in ("images", "upgrade") if name in stored}
    # Images that come from the operator's settings, to keep them until the upgrade.
    images = images_of(evidence.target, evidence.deployment)
    upgrade = _under_way(evidence, ready=ready)
    return {
        **({"images": images} if images else {}),
        **({"upgrade": upgrade.as_status()} if upgrade else {}),
    }


def upgraded(evidence: Evidence, *, ready: bool) -> Verdict | None:
    """Return the verdict on a service's upgrade; None without an upgrade."""
    if evidence.target is None:
        return None
    now = (
        ", ".join(f"{name} {image}" for name, image in images_of(evidence.target, evidence.deployment).items())
        or "with the images of the spec"
    )
    upgrade = _under_way(evidence, ready=ready)
    if upgrade is None:
        return (Status.FALSE, Reason.UPGRADE_PENDING, _PENDING.format(now=now)) if evidence.pending else None
    if _is_failed(evidence):
        return Status.FALSE, Reason.UPGRADE_FAILED, _FAILED.format(since=upgrade.since)
    return Status.FALSE, Reason.UPGRADING, _UPGRADING.format(now=now, since=upgrade.since)


def _under_way(evidence: Evidence, *, ready: bool) -> Upgrade | None:
    """Return the upgrade in progress, which blocks others.

    An upgrade does not block others if it is finished, or if its service has no pods or was not ready before.
    """
    upgrade = evidence.upgrade
    if upgrade is None or ready or not evidence.wanted or (_is_failed(evidence) and not upgrade.was_ready):
        return None
    return upgrade


def _is_failed(evidence: Evidence) -> bool:
    return evidence.overdue or deadline_exceeded(evidence) is not None
