"""The Lease: one writer, whatever the clocks say."""

from shoal_operator.loop.lease import Election, LeaseRecord


def taken_by(identity: str, renewed: str = "t1", transitions: int = 0) -> LeaseRecord:
    return LeaseRecord(identity, "t0", renewed, transitions)


def test_first_operator_acquires_the_lease() -> None:
    election = Election("a")
    election.observe(None, 0.0)
    record = election.next_record(0.0, "t")

    assert record == LeaseRecord("a", "t", "t", 0)
    assert not election.may_write(0.0)
    election.renewed(record, 0.0)
    assert election.may_write(0.0)


def test_a_holder_that_cannot_renew_stops_before_another_may_start() -> None:
    holder, standby = Election("a"), Election("b")
    record = taken_by("a")
    holder.renewed(record, 0.0)
    standby.observe(record, 0.0)

    assert holder.may_write(9.9)
    assert not holder.may_write(10.0)
    assert standby.next_record(14.9, "t") is None
    assert standby.next_record(15.0, "t") == LeaseRecord("b", "t", "t", 1)


def test_each_renewal_starts_the_wait_anew() -> None:
    standby = Election("b")
    standby.observe(taken_by("a", "t1"), 0.0)
    standby.observe(taken_by("a", "t2"), 10.0)

    assert standby.next_record(24.9, "t") is None
    assert standby.next_record(25.0, "t") is not None


def test_released_lease_is_acquired_at_once() -> None:
    standby = Election("b")
    standby.observe(taken_by("a"), 0.0)
    standby.observe(taken_by(""), 1.0)

    assert standby.next_record(1.0, "t") == LeaseRecord("b", "t", "t", 1)


def test_a_renewal_keeps_when_it_was_acquired() -> None:
    election = Election("a")
    election.observe(taken_by("a", "t1", 3), 0.0)

    assert election.next_record(2.0, "t2") == LeaseRecord("a", "t0", "t2", 3)


def test_a_restarted_holder_waits_for_its_own_old_name_to_expire_when_it_has_a_new_one() -> None:
    restarted = Election("a-2")
    restarted.observe(taken_by("a-1"), 100.0)

    assert restarted.next_record(101.0, "t") is None


def test_releasing_the_lease_ends_the_permission_to_write() -> None:
    election = Election("a")
    election.renewed(taken_by("a"), 0.0)
    election.lost()

    assert not election.may_write(0.1)


def test_no_operator_writes_before_it_has_read_the_lease() -> None:
    assert not Election("a").may_write(0.0)
