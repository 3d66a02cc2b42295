"""What a status says of images, and of an upgrade that waits, is under way, or has failed."""

from shoal_operator.planning.blocked import Verdict
from shoal_operator.planning.checks import deadline_exceeded
from shoal_operator.planning.evidence import Evidence
from shoal_operator.planning.observation import dig
from shoal_operator.planning.upgrade import Upgrade, images_of
from shoal_schema.conditions import Reason, Status
from shoal_schema.declaring import Json

_PENDING = (
    "its pods ({now}) are not yet as this operator makes them. They are replaced in their turn: the oldest service"
    " first, as many at a time and in the hours that upgrade in the operator's chart says, and none while a service is"
    " UpgradeFailed; or with the next change of the spec"
)
_UPGRADING = "its pods are being replaced by those that this operator makes ({now}), since {since}"
_FAILED = (
    "not ready since its upgrade began ({since}), so no other service's is begun: Ready says why. Change the spec, name"
    " the images of before in runtime.image and proxy.image, or give the operator other images"
)


def upgrade_status(evidence: Evidence, *, ready: bool) -> Json:
    """Return ``status.images`` and ``status.upgrade``; of a spec that cannot be read, what was said."""
    stored = dig(evidence.observation.resource, "status", default={})
    if evidence.target is None:
        return {name: stored[name] for name in ("images", "upgrade") if name in stored}
    images = images_of(evidence.target, evidence.deployment)
    upgrade = _under_way(evidence, ready=ready)
    return {
        **({"images": images} if images else {}),
        **({"upgrade": upgrade.as_status()} if upgrade else {}),
    }


def upgraded(evidence: Evidence, *, ready: bool) -> Verdict | None:
    """Tell of an upgrade; None where there is nothing to tell."""
    if evidence.target is None:
        return None
    now = (
        ", ".join(f"{name} {image}" for name, image in images_of(evidence.target, evidence.deployment).items())
        or "its images are named in its spec"
    )
    upgrade = _under_way(evidence, ready=ready)
    if upgrade is None:
        return (Status.FALSE, Reason.UPGRADE_PENDING, _PENDING.format(now=now)) if evidence.pending else None
    if _is_failed(evidence):
        return Status.FALSE, Reason.UPGRADE_FAILED, _FAILED.format(since=upgrade.since)
    return Status.FALSE, Reason.UPGRADING, _UPGRADING.format(now=now, since=upgrade.since)


def _under_way(evidence: Evidence, *, ready: bool) -> Upgrade | None:
    """Return the upgrade that others wait for: not one that is done, or that has no pods, or was hopeless before."""
    upgrade = evidence.upgrade
    if upgrade is None or ready or not evidence.wanted or (_is_failed(evidence) and not upgrade.was_ready):
        return None
    return upgrade


def _is_failed(evidence: Evidence) -> bool:
    return evidence.overdue or deadline_exceeded(evidence) is not None
