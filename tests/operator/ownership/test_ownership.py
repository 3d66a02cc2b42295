"""How often an install claims what another one keeps."""

from shoal_operator.ownership.installs import Ownership, OwnershipStep, decide


def test_refused_claims_are_made_again_ever_later_five_minutes_apart_at_most() -> None:
    known, now_s, pauses = Ownership(), 0.0, []
    for _ in range(5):
        step, known = decide("me", "keeper", "", known, now_s)
        assert step is OwnershipStep.CLAIM
        refused_s = now_s + 1
        step, known = decide("me", "keeper", "", known, refused_s)
        assert step is OwnershipStep.LEAVE
        now_s = known.claims.until_s
        assert decide("me", "keeper", "", known, now_s - 0.001)[0] is OwnershipStep.LEAVE
        pauses.append(now_s - refused_s)

    assert pauses == [60, 120, 240, 300, 300]
