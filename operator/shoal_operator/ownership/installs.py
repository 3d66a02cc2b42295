"""Ownership of services among several installs of the operator.

Operators of one install share a Lease. Two installs that watch the same namespace do not, and would undo each other's
writes forever. An annotation of the child ``Service`` therefore names the owner, and other installs write nothing. From
time to time they write a claim in another annotation (a Service has no generation, so this has no side effects). A
running owner removes the claim; a claim that stays for a minute shows that the owner is gone, and the claimant takes
over.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shoal_operator.ownership.conflicts import Limit, WriteHistory, try_write
from shoal_schema.resource import GROUP

CLAIM_ANNOTATION = f"{GROUP}/claimed-by"
SETTLE_S = 60.0
"""Age at which a claim succeeds; longer than a standby of the owner needs to take over."""
CLAIMS = Limit(writes=1, window_s=math.inf, min_pause_s=60.0, max_pause_s=300.0)
"""A claim that the owner removed is a write that another writer undid."""
CLAIM_REPLY_S = 12.0
"""Minimum interval between removals of claims; far less than SETTLE_S."""
CLAIM_MEMORY_S = 2 * CLAIMS.max_pause_s
"""A claimant without a claim for this long no longer exists."""


class OwnershipStep(StrEnum):
    """What this install does with a service: reconcile, claim or leave it."""

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
    claims: WriteHistory = field(default_factory=WriteHistory)
    """Claims of this install."""
    claimant: str = ""
    """The last install that claimed an own service."""
    rejected_s: float = float("-inf")
    """When a claim on an own service was last removed."""

    def recent_claimant(self, now_s: float) -> str:
        """Return the install that recently claimed this install's service, or ""."""
        return self.claimant if now_s - self.rejected_s < CLAIM_MEMORY_S else ""


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
        return OwnershipStep.REJECT, Ownership(claimant=known.claimant if claim == me else claim, rejected_s=now_s)
    known = Ownership(keeper, known.claims, rejected_s=known.rejected_s)
    # The claim is in place. When it is not removed in time, reconcile, whose write makes this install the owner.
    if claim == me:
        since_s = known.claims.times_s or (now_s,)
        step = OwnershipStep.KEEP if now_s - since_s[-1] >= SETTLE_S else OwnershipStep.LEAVE
        return step, replace(known, claims=replace(known.claims, times_s=since_s, until_s=-math.inf))
    # Another install's claim, and none of this one that was removed.
    if claim and not known.claims.times_s:
        return OwnershipStep.LEAVE, known
    # Claim, unless the last claim was removed: then pause first.
    may, claims = try_write(known.claims, CLAIMS, "", now_s)
    return OwnershipStep.CLAIM if may else OwnershipStep.LEAVE, replace(known, claims=claims)
