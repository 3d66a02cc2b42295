"""A request that a replica gives away shows the peer its client's own key: it is let in by that, or not at all."""

from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.calls import ConcurrentClients, answer_to, row
from tests.fakes import RunningProxy
from tests.proxy.test_forwarding import IN_TIME, at, forwarded, made_busy, replica

ALICE, EDGE, OTHER = "alice-key-0123456789", "edge-key-0123456789", "other-key-0123456789"


class Keyed(ConcurrentClients):
    """Clients that show a key."""

    def __init__(self, url: str, **headers: str) -> None:
        super().__init__(url)
        self._headers = headers

    def post(self, path: str, **options: Any) -> Future[httpx.Response]:
        return super().post(path, **{**options, "headers": {**self._headers, **options.get("headers", {})}})


def guarded(folder: Path, *, alice: str = ALICE, rate: float = 0.0, **more: Any) -> dict[str, Any]:
    folder.mkdir()
    (folder / "alice").write_text(alice)
    (folder / "edge").write_text(EDGE)
    header = {"access_header__name": "x-consumer", "access_header__keys": ("edge",)}
    limits = {"access_limits__rows_per_second": {"alice": rate, "carol": rate}} if rate else {}
    return {"process__api_keys": str(folder), **header, **limits, **more}


def counted(running: RunningProxy) -> dict[tuple[str, int], int]:
    assert running.proxy.access_control is not None
    return dict(running.proxy.access_control.requests)


@pytest.mark.parametrize(
    ("shown", "label"),
    [
        ({"x-api-key": ALICE}, "alice"),
        ({"authorization": f"Bearer {ALICE}"}, "alice"),
        ({"x-api-key": EDGE, "x-consumer": "carol"}, "edge"),
    ],
)
def test_what_is_forwarded_is_admitted_by_its_clients_key_and_counted_at_both(
    tmp_path: Path, shown: dict[str, str], label: str
) -> None:
    with (
        replica(**guarded(tmp_path / "b")) as other,
        replica(at(other), **guarded(tmp_path / "a")) as running,
    ):
        group = Keyed(running.url, **shown)
        with made_busy(running, group):
            answer = group.ask(3, headers=IN_TIME).result()
            assert answer_to(answer) == [2 * value for value in row(3)]
        group.close()
        assert forwarded(running) == {"answered": 1}
        assert counted(running) == {(label, 200): 2}  # with the one that made it busy
        assert counted(other) == {(label, 200): 1}


def test_forwarded_credentials_are_sent_to_a_peer_once(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"fair_share_header": "x-consumer", "proxy__forward_headers": ("x-consumer",)}
    with (
        replica(**guarded(tmp_path / "b"), **shared) as other,
        replica(at(other), **guarded(tmp_path / "a"), **shared) as running,
    ):
        group = Keyed(running.url, **{"x-api-key": EDGE, "x-consumer": "carol"})
        with made_busy(running, group):
            assert answer_to(group.ask(3, headers=IN_TIME).result()) == [2 * value for value in row(3)]
        group.close()
        assert forwarded(running) == {"answered": 1}


def test_a_peer_that_does_not_have_the_key_yet_runs_nothing_and_the_client_gets_what_it_would_have(
    tmp_path: Path,
) -> None:
    with (
        replica(**guarded(tmp_path / "b", alice=OTHER)) as other,
        replica(at(other), **guarded(tmp_path / "a")) as running,
    ):
        group = Keyed(running.url, **{"x-api-key": ALICE})
        with made_busy(running, group):
            refused = group.ask(3, headers=IN_TIME).result()
            assert (refused.status_code, refused.headers["x-shoal-executed"]) == (503, "no")
        group.close()
        assert forwarded(running) == {"refused": 1}
        assert not other.runtime.seen


def test_the_forwarded_mark_bypasses_no_check(tmp_path: Path) -> None:
    with replica(**guarded(tmp_path / "a", rate=2.0)) as running:
        group, stranger = Keyed(running.url, **{"x-api-key": ALICE}), Keyed(running.url)
        said = {"x-shoal-forwarded": "1"}

        assert stranger.ask(1, headers=said).result().status_code == 401
        statuses = [group.ask(1, headers=said).result().status_code for _ in range(6)]
        assert 429 in statuses
        assert counted(running) == Counter([("alice", status) for status in statuses]), (
            "the mark of a forwarded request hides no client"
        )
        group.close()
        stranger.close()
