"""Clients whose requests were lost with a runtime: trials, pauses, and when they end."""

import pytest

from shoal_proxy.batching.client_suspicion import (
    CLIENT_OFFENCES,
    FIRST_PAUSE_S,
    FORGET_S,
    MAX_CLIENTS,
    MAX_PAUSE_S,
    MAX_TRIALS,
    OTHERS_S,
    SuspectClients,
)
from shoal_proxy.batching.recovery import ALONE_S


def after_losses(count: int, *, offends: bool = False) -> SuspectClients:
    """Return the record after losses of a client, one per second from 0 s on."""
    clients = SuspectClients()
    for second in range(count):
        clients.record_loss("a", second, sent_s=second, offends=offends)
    return clients


def trials_left(clients: SuspectClients, now_s: float) -> int:
    """Return how many requests must succeed alone, by letting them."""
    count = 0
    while clients.is_on_trial("a", now_s):
        clients.record_success("a")
        count += 1
    return count


@pytest.mark.parametrize(("losses", "trials"), [(0, 0), (1, 1), (2, 2), (3, 4), (4, MAX_TRIALS), (99, MAX_TRIALS)])
def test_each_loss_doubles_the_requests_that_must_succeed_alone(losses: int, trials: int) -> None:
    assert trials_left(after_losses(losses), losses) == trials


def test_only_clients_of_the_lost_batch_are_on_trial() -> None:
    clients = after_losses(1)
    clients.record_loss("", 0.0, sent_s=0.0, offends=True)

    assert not clients.is_on_trial("b", 1.0)
    assert not clients.is_on_trial("", 1.0), "requests without a name have no common client"


def test_losses_of_batches_that_ran_at_the_same_time_count_once() -> None:
    clients = after_losses(1)

    assert clients.record_loss("a", 0.1, sent_s=-0.5, offends=True) == 0.0

    assert not clients.is_offender("a", 1.0)
    assert trials_left(clients, 1.0) == 1


def test_shared_losses_pause_no_client() -> None:
    assert after_losses(99).pause_left_s("a", 99.0) == 0.0


def test_each_offence_beyond_the_first_doubles_the_pause() -> None:
    clients, now_s, pauses = SuspectClients(), 0.0, []

    for _ in range(CLIENT_OFFENCES + 7):
        clients.record_arrival("b", now_s)
        pause_s = clients.record_loss("a", now_s, sent_s=now_s, offends=True)
        assert clients.pause_left_s("a", now_s) == pause_s
        pauses.append(pause_s)
        now_s += pause_s
        assert clients.pause_left_s("a", now_s) == 0.0
        assert clients.is_on_trial("a", now_s)

    longest = [MAX_PAUSE_S] * 3
    assert pauses == [0.0, FIRST_PAUSE_S, *[FIRST_PAUSE_S * 2**number for number in range(1, 5)], *longest]


def test_a_pause_has_no_effect_while_no_other_client_sends_requests() -> None:
    clients = after_losses(CLIENT_OFFENCES, offends=True)
    clients.record_arrival("a", 2.0)
    assert clients.pause_left_s("a", 2.0) > 0, "requests before the first loss are not recorded"
    clients.record_loss("a", OTHERS_S, sent_s=OTHERS_S - 1.0, offends=True)
    assert clients.pause_left_s("a", OTHERS_S) == 0.0

    clients.record_arrival("b", OTHERS_S + 3.0)
    assert clients.pause_left_s("a", OTHERS_S + 4.0) > 0
    clients.record_arrival("a", OTHERS_S + 5.0)
    clients.record_arrival("a", OTHERS_S + 6.0)
    clients.record_loss("a", OTHERS_S + 7.0, sent_s=OTHERS_S + 6.0, offends=True)
    clients.record_loss("a", OTHERS_S + 8.0, sent_s=OTHERS_S + 7.0, offends=True)

    assert clients.pause_left_s("a", 2.0 + 2 * OTHERS_S) > 0
    assert clients.pause_left_s("a", 3.0 + 2 * OTHERS_S) == 0.0


def test_an_offence_is_forgiven_once_all_trials_have_succeeded() -> None:
    clients = after_losses(2, offends=False)
    clients.record_loss("a", 3.0, sent_s=2.0, offends=True)
    clients.record_success("a")
    assert clients.is_offender("a", 4.0)
    trials_left(clients, 4.0)
    assert not clients.is_offender("a", 4.0)

    assert clients.record_loss("a", 5.0, sent_s=4.0, offends=True) == 0.0
    assert clients.record_loss("a", 6.0, sent_s=5.0, offends=True) == FIRST_PAUSE_S
    trials_left(clients, 6.0 + FIRST_PAUSE_S)
    assert clients.record_loss("a", 7.0 + FIRST_PAUSE_S, sent_s=6.5 + FIRST_PAUSE_S, offends=True) == 2 * FIRST_PAUSE_S


def test_trials_of_several_clients_that_are_lost_in_a_row_are_the_runtimes_fault() -> None:
    clients = SuspectClients()
    pauses = [clients.record_loss(name, now_s, sent_s=now_s, offends=True) for now_s, name in enumerate("ababab")]
    assert pauses == [0.0] * 6

    clients.record_completion()

    assert clients.record_loss("a", 7.0, sent_s=7.0, offends=True) == FIRST_PAUSE_S, "it had the first one"
    clients.record_completion()
    assert clients.record_loss("b", 8.0, sent_s=8.0, offends=True) == 0.0


def test_a_pause_lasts_although_another_request_succeeds_meanwhile() -> None:
    clients = after_losses(CLIENT_OFFENCES, offends=True)
    clients.record_arrival("b", 0.0)
    for _ in range(MAX_TRIALS):
        clients.record_success("a")

    assert clients.is_on_trial("a", CLIENT_OFFENCES)
    assert clients.pause_left_s("a", CLIENT_OFFENCES) > 0
    assert not clients.is_on_trial("a", CLIENT_OFFENCES + FIRST_PAUSE_S)


def test_an_offender_whose_trials_succeed_is_paused_for_longer_after_the_next_offence() -> None:
    clients = after_losses(CLIENT_OFFENCES, offends=True)
    later_s = CLIENT_OFFENCES + FIRST_PAUSE_S
    assert trials_left(clients, later_s) > 0

    assert clients.record_loss("a", later_s + 1, sent_s=later_s, offends=True) == 2 * FIRST_PAUSE_S


@pytest.mark.parametrize(
    ("losses", "offends", "kept_s"), [(1, False, ALONE_S), (1, True, ALONE_S), (CLIENT_OFFENCES, True, FORGET_S)]
)
def test_losses_are_forgotten(losses: int, kept_s: float, *, offends: bool) -> None:
    last_s = losses - 1
    assert after_losses(losses, offends=offends).is_on_trial("a", last_s + kept_s - 1)

    clients = after_losses(losses, offends=offends)
    assert not clients.is_on_trial("a", last_s + kept_s)
    assert clients.is_empty
    assert clients.record_loss("a", last_s + kept_s, sent_s=last_s, offends=True) == 0.0


def test_the_record_of_a_client_that_does_not_return_is_dropped() -> None:
    clients = after_losses(1)

    clients.record_arrival("b", ALONE_S - 1)
    assert not clients.is_empty
    clients.record_arrival("b", ALONE_S)

    assert clients.is_empty


def test_the_number_of_recorded_clients_is_bounded() -> None:
    clients = SuspectClients()
    for number in range(MAX_CLIENTS + 1):
        clients.record_loss(f"{number}" * 10_000, number / 100, sent_s=number / 100)

    assert not clients.is_on_trial("0" * 10_000, 10.0), "the client with the oldest loss is dropped"
    assert clients.is_on_trial("1" * 10_000, 10.0)


def test_a_name_may_be_any_text() -> None:
    clients = SuspectClients()
    clients.record_loss("\ud800é", 0.0, sent_s=0.0)

    assert clients.is_on_trial("\ud800é", 1.0)
