"""How long a stopping replica keeps serving, by the received stays and their times."""

from shoal_proxy.lifecycle.stay import MAX_WORD_S, WORD_S, Stay


def test_a_replica_without_an_operator_leaves_at_once() -> None:
    stay = Stay(0.0)
    stay.begin(100.0)
    assert stay.left_s(100.0) == 0


def test_a_replica_waits_for_the_operator_and_no_longer() -> None:
    stay = Stay(300.0)
    stay.begin(100.0)
    assert stay.left_s(100.0) == WORD_S
    assert stay.left_s(100.0 + WORD_S) == 0
    assert not stay.granted


def test_a_replica_that_still_gets_requests_waits_longer_for_the_operator() -> None:
    stay = Stay(300.0)
    stay.begin(100.0)
    stay.request_arrived(102.0)
    assert stay.left_s(102.0) == WORD_S
    stay.request_arrived(99.0 + MAX_WORD_S)
    assert stay.left_s(99.0 + MAX_WORD_S) == 1.0
    stay.grant(0.0, 120.0)
    stay.request_arrived(121.0)
    assert stay.left_s(121.0) == 0


def test_requests_do_not_extend_a_limit() -> None:
    stay = Stay(2.0)
    stay.begin(100.0)
    stay.request_arrived(101.0)
    assert stay.left_s(101.0) == 1.0


def test_a_replica_stays_for_the_granted_time_and_at_most_to_the_limit() -> None:
    stay = Stay(300.0)
    stay.begin(100.0)
    stay.grant(20.0, 101.0)
    assert (stay.left_s(101.0), stay.granted) == (20.0, True)
    stay.grant(3600.0, 111.0)
    assert stay.left_s(111.0) == 290.0


def test_the_operator_may_be_faster_than_the_signal() -> None:
    stay = Stay(300.0)
    stay.grant(60.0, 100.0)
    stay.begin(102.0)
    assert stay.left_s(102.0) == 58.0


def test_a_replica_that_is_stopped_does_not_wait() -> None:
    for told_s in (99.0, 101.0):
        stay = Stay(300.0)
        if told_s < 100.0:
            stay.grant(0.0, told_s)
        stay.begin(100.0)
        stay.grant(0.0, 101.0)
        assert (stay.left_s(101.0), stay.granted) == (0.0, False)


def test_a_grant_that_ended_before_the_signal_keeps_nothing() -> None:
    stay = Stay(30.0)
    stay.grant(10.0, 100.0)
    stay.begin(200.0)
    assert stay.left_s(200.0) == 0
