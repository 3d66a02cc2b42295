from itertools import pairwise

import pytest

from shoal_proxy.lifecycle import drain
from shoal_proxy.lifecycle.drain import ACCEPTS, KEEPS_CONNECTIONS, ProxyPhase, unready_reason


def test_the_code_is_the_table_of_the_docstring() -> None:
    rows = [line.split()[:4] for line in (drain.__doc__ or "").splitlines() if line.strip().isprintable()]
    table = {row[0]: row[1:] for row in rows if row and row[0] in ProxyPhase.__members__}

    assert table == {
        phase.name: [
            "yes" if allowed else "no"
            for allowed in (phase in ACCEPTS, not unready_reason(phase, ""), phase in KEEPS_CONNECTIONS)
        ]
        for phase in ProxyPhase
    }


def test_what_was_taken_away_never_returns() -> None:
    for phase, following in pairwise(ProxyPhase):
        for allowed in (ACCEPTS, KEEPS_CONNECTIONS):
            assert following not in allowed or phase in allowed


@pytest.mark.parametrize(
    ("phase", "runtime_reason", "reason"),
    [
        (ProxyPhase.SERVING, "", ""),
        (ProxyPhase.SERVING, "loading", "loading"),
        (ProxyPhase.STAYING, "", ""),
        (ProxyPhase.STAYING, "loading", "loading"),
        (ProxyPhase.LEAVING, "", "proxy is leaving"),
        (ProxyPhase.DRAINING, "loading", "proxy is draining"),
    ],
)
def test_the_reason_for_being_unready(phase: ProxyPhase, runtime_reason: str, reason: str) -> None:
    assert unready_reason(phase, runtime_reason) == reason
