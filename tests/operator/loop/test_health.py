import pytest

from shoal_operator.loop.health import diagnose, unready


@pytest.mark.parametrize(
    ("last_event_s", "is_connected", "began_s", "wrong"),
    [
        (None, True, None, None),
        (910.0, True, 900.0, None),
        (909.0, True, None, "no watch event for 91 s although the API server responds"),
        (909.0, False, None, None),
        (999.0, True, 819.0, "a reconciliation has been running for 181 s"),
    ],
)
def test_a_restart_is_asked_for_when_it_would_help(
    last_event_s: float | None, is_connected: bool, began_s: float | None, wrong: str | None
) -> None:
    assert diagnose(1000.0, last_event_s=last_event_s, is_connected=is_connected, began_s=began_s) == wrong


@pytest.mark.parametrize(
    ("is_connected", "watching", "leading", "settled", "missing"),
    [
        (True, True, False, False, None),
        (True, True, True, True, None),
        (True, True, True, False, "not every service has been reconciled"),
        (True, False, False, True, "the watches have received no event"),
        (False, True, True, True, "the API server does not respond"),
    ],
)
def test_operator_with_watches_and_api_access_is_ready_as_standby_too(
    is_connected: bool, watching: bool, leading: bool, settled: bool, missing: str | None
) -> None:
    reported = unready(is_connected=is_connected, watching=watching, leading=leading, settled=settled)

    assert reported is missing or str(missing) in str(reported)
