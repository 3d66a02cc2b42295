"""Nothing stays behind: ten thousand requests, some of which fail, and some of whose clients leave."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import orjson

from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.graph.graph_request import GraphRequest
from shoal_proxy.graph.link import GraphLink
from tests.calls import RawConnection, row, v2_body
from tests.fakes import FakeRuntime, Seen, double, write_answer
from tests.graphs import RunningGraph, running_graph
from tests.proxy.graph.test_graph_end_to_end import PATH, SIDE_BY_SIDE

CALLERS = 8
EACH = 1250
FAILS, LEAVES = 7, 29
"""Every so many requests fail, and every so many clients leave."""


def test_nothing_stays_behind_of_those_that_failed_and_those_that_left() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if seen.inputs["x"][0][0] == FAILS:
            return 500, {}, b'{"error": "broken"}'
        return 200, *write_answer(double(seen.inputs), {}, binary=True)

    models = {"left": FakeRuntime(), "right": FakeRuntime(respond=respond)}
    with running_graph(models, SIDE_BY_SIDE) as running:
        with ThreadPoolExecutor(CALLERS) as pool:
            statuses = [each for found in pool.map(_call, [running] * CALLERS) for each in found]
        assert len(statuses) == CALLERS * EACH
        assert {status: statuses.count(status) for status in set(statuses)}.keys() == {200, 500, None}
        running.until(lambda: running.proxy.dispatcher.settled)
        for model in models.values():
            model.seen.clear()
        link = running.proxy.link
        assert isinstance(link, GraphLink)
        assert not link._walks
        for step in link._steps.values():
            assert len(step.upstream._connections) <= 2 * CALLERS
        running.until(lambda: not _walking())
        gc.collect()
        objects = gc.get_objects()
        assert not [each for each in objects if isinstance(each, GraphRequest)]
        # Entries with later deadlines stay until then, but hold nothing any more.
        assert not [each for each in objects if isinstance(each, PendingRequest) and (each.inputs or each.parts)]


def _walking() -> list[str]:
    """Return the tasks that take requests to models."""
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    return [name for name in names if "Dispatcher._run" in name or "_take" in name]


def _call(running: RunningGraph) -> list[int | None]:
    """Return the statuses of so many requests; None of those whose client left."""
    found: list[int | None] = []
    connection = RawConnection(running.address)
    for number in range(EACH):
        body = orjson.dumps(v2_body([row(FAILS if number % FAILS == 0 else 1)]))
        connection.send(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)), body)
        if number % LEAVES == 0:
            connection.socket.close()
            connection = RawConnection(running.address)
            found.append(None)
        else:
            found.append(connection.response()[0])
    connection.socket.close()
    return found
