"""Results of asynchronous requests at other replicas, and of other clients."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy
from tests.proxy.access.test_keys_between_peers import ALICE, EDGE, guarded
from tests.proxy.asynchronous.requests import ASYNC, accept, asynchronous_proxy, doubled, outputs, result
from tests.proxy.test_forwarding import at


def until_known(running: RunningProxy, peers: int) -> None:
    """Wait until a replica has reached its peers."""
    forwarder = running.proxy.forwarder
    if forwarder is not None:
        running.until(lambda: sum(bool(link.instance) for link in forwarder.replicas.links) == peers)


def replicas(stack: ExitStack, count: int, **settings: Any) -> list[RunningProxy]:
    """Run replicas of which each knows those before it."""
    running: list[RunningProxy] = []
    for _ in range(count):
        peers = tuple(map(at, running))
        each = stack.enter_context(asynchronous_proxy(process__peers=peers, **settings))
        until_known(each, len(peers))
        running.append(each)
    return running


def test_each_replica_fetches_and_deletes_results_of_its_peers() -> None:
    with ExitStack() as stack:
        first, second, last = replicas(stack, 3)
        for number, holder in enumerate((first, second)):
            location = accept(holder.url, float(number))
            assert outputs(result(last.url, location)) == doubled(float(number))
            direct, relayed = (plain.get(each.url + location) for each in (holder, last))
            assert relayed.content == direct.content
            assert relayed.headers["content-type"] == direct.headers["content-type"]
            with plain.Client() as client:
                assert client.head(last.url + location).headers["content-type"] == direct.headers["content-type"]
            assert plain.delete(last.url + location).status_code == 204
            assert plain.get(holder.url + location).status_code == 404
            assert plain.get(last.url + location).status_code == 404


def test_a_result_of_an_id_without_a_replica_is_found_at_any_peer() -> None:
    with ExitStack() as stack:
        *_, holder, last = replicas(stack, 3)
        given = "ab" * 16
        response = plain.post(
            holder.url + V2_PATH, json=v2_body([row(2.0)]), headers={**ASYNC, "x-shoal-async-id": given}
        )
        assert outputs(result(last.url, response.headers["location"])) == doubled(2.0)


def test_a_peer_that_does_not_respond_is_no_404() -> None:
    with ExitStack() as stack:
        with asynchronous_proxy() as holder:
            last = stack.enter_context(asynchronous_proxy(process__peers=(at(holder),)))
            until_known(last, 1)
            location = accept(holder.url)
            assert result(last.url, location).status_code == 200
        gone = plain.get(last.url + location)
        assert gone.status_code == 503
        assert gone.headers["retry-after"] == "1"


def test_a_client_finds_only_its_own_results(tmp_path: Path) -> None:
    settings = guarded(tmp_path / "keys", access_limits__rows_in_flight={"alice": 1})
    alice, carol = {"x-api-key": ALICE}, {"x-api-key": EDGE, "x-consumer": "carol"}
    with (
        asynchronous_proxy(**settings) as running,
        asynchronous_proxy(process__peers=(at(running),), **settings) as peer,
    ):
        until_known(peer, 1)
        running.hold()
        location = accept(running.url, 4.0, headers=alice)
        for each in (running, peer):
            assert plain.get(each.url + location).status_code == 401
            assert plain.get(each.url + location, headers=carol).status_code == 404
            assert plain.delete(each.url + location, headers=carol).status_code == 404
            assert plain.get(each.url + location, headers=alice).status_code == 202
        # The waiting request counts against its client's limit until it has ended.
        over = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers={**ASYNC, **alice})
        assert over.status_code == 429
        running.release()
        assert outputs(result(peer.url, location, headers=alice)) == doubled(4.0)
        assert plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=alice).status_code == 200


def test_rows_of_a_deleted_request_count_until_they_have_run(tmp_path: Path) -> None:
    settings = guarded(tmp_path / "keys", access_limits__rows_in_flight={"alice": 1})
    alice = {"x-api-key": ALICE}
    with asynchronous_proxy(**settings) as running:
        running.hold()
        location = accept(running.url, headers=alice)
        running.until(lambda: running.runtime.running == 1)
        assert plain.delete(running.url + location, headers=alice).status_code == 204
        over = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers={**ASYNC, **alice})
        assert over.status_code == 429
        running.release()
        running.until(lambda: running.proxy.dispatcher.settled)
        assert outputs(result(running.url, accept(running.url, 2.0, headers=alice), headers=alice)) == doubled(2.0)
