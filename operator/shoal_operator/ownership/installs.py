"""Ownership of services among several installs of the operator.

Operators of one install share a Lease. Two installs that watch the same namespace do not, and would undo each other's
writes forever. An annotation of the child ``Service`` therefore names the owner, and other installs write nothing. From
time to time they write a claim in another annotation (a Service has no generation, so this has no side effects). A
running owner removes the claim; a claim that stays for a minute shows that the owner is gone, and the claimant takes
over.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from shoal_operator.children.observation import dig
from shoal_operator.manifests.labels import OPERATOR_ANNOTATION
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GROUP

CLAIM_ANNOTATION = f"{GROUP}/claimed-by"
SETTLE_S = 60.0
"""Age at which a claim succeeds; longer than a standby of the owner needs to take over."""
MIN_PAUSE_S = 60.0
MAX_PAUSE_S = 300.0
CLAIM_REPLY_S = 12.0
"""Minimum interval between removals of claims; far less than SETTLE_S."""
CLAIM_MEMORY_S = 2 * MAX_PAUSE_S
"""A claimant without a claim for this long no longer exists."""


class OwnershipStep(StrEnum):
    """Action of this install for a service, by the service's owner."""

    KEEP = "keep"
    """Own service: reconcile."""
    REJECT = "reject"
    """Own service: remove the claim and reconcile."""
    WAIT = "wait"
    """Own service: reconcile, and again soon, when the claim may be removed."""
    CLAIM = "claim"
    """Another install's service: write a claim, and nothing else."""
    LEAVE = "leave"
    """Another install's service: write nothing."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Ownership of one service, as this install sees it (times: monotonic s)."""

    keeper: str = ""
    """The owner, where it is another install."""
    claimed_s: float | None = None
    """Since when this install's claim has been in place."""
    refused: int = 0
    """Claims of this install that were removed, in a row."""
    pause_until_s: float = float("-inf")
    """No claim before then."""
    claimant: tuple[str, float] | None = None
    """The last install that claimed an own service, and when."""
    rejected_s: float = float("-inf")
    """When a claim on an own service was last removed."""


def claimant(state: Ownership, now_s: float) -> str:
    """Return the other install that recently claimed a service of this install; empty if there is none."""
    known = state.claimant
    return known[0] if known and now_s - known[1] < CLAIM_MEMORY_S else ""


def ownership_of(me: str, named: Json, known: Ownership, now_s: float) -> tuple[OwnershipStep, Ownership]:
    """Return the action for a service, and the next state.

    Args:
        me: unique name of this install in the cluster.
        named: the child with the annotations; empty where it does not exist.
        known: the state.
        now_s: monotonic time (s).
    """
    annotations: Json = dig(named, "metadata", "annotations", default={})
    return decide(me, annotations.get(OPERATOR_ANNOTATION, ""), annotations.get(CLAIM_ANNOTATION, ""), known, now_s)


def decide(me: str, keeper: str, claim: str, known: Ownership, now_s: float) -> tuple[OwnershipStep, Ownership]:
    """Return this install's action for a service, and the next ownership.

    Args:
        me: name of this install.
        keeper: name of the owner in the annotation; empty without an owner.
        claim: name of the claimant in the annotation; empty without a claim.
        known: ownership that the last call returned.
        now_s: monotonic time (s).
    """
    # An own service: remove claims of others, at a limited rate.
    if keeper in ("", me):
        ours = Ownership(claimant=known.claimant, rejected_s=known.rejected_s)
        if not claim:
            return OwnershipStep.KEEP, ours
        if now_s - known.rejected_s < CLAIM_REPLY_S:
            return OwnershipStep.WAIT, ours
        claimant = (claim, now_s) if claim != me else known.claimant
        return OwnershipStep.REJECT, Ownership(claimant=claimant, rejected_s=now_s)
    # Another install's service.
    known = replace(known, keeper=keeper, claimant=None)
    if claim == me:
        since_s = now_s if known.claimed_s is None else known.claimed_s
        # The claim was not removed in time: reconcile, whose write makes this install the owner.
        step = OwnershipStep.KEEP if now_s - since_s >= SETTLE_S else OwnershipStep.LEAVE
        return step, replace(known, claimed_s=since_s)
    # The owner removed the claim: pause before the next one.
    if known.claimed_s is not None:
        pause_s = min(MIN_PAUSE_S * 2.0**known.refused, MAX_PAUSE_S)
        refused = min(known.refused + 1, 10)
        return OwnershipStep.LEAVE, replace(known, claimed_s=None, refused=refused, pause_until_s=now_s + pause_s)
    if claim or now_s < known.pause_until_s:
        return OwnershipStep.LEAVE, known
    return OwnershipStep.CLAIM, replace(known, claimed_s=now_s)
