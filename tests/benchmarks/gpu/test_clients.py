import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.clients import Plan, run, summary, wire_requests

PLAN = Plan(port=0, case="mlp", quick=True, request_rows=2, clients=3, warm_up_s=0.05, duration_s=0.2)


def load(plan: Plan, statuses: tuple[str, ...] = ("200 OK",)) -> tuple[dict[str, Any], int]:
    """Load a server whose responses have these statuses in turn; return the result, and the connections it had."""
    connections: list[int] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            while True:
                for status in statuses:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().rpartition(b"content-length: ")[2].split()[0])
                    await reader.readexactly(length)
                    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode())
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def main() -> dict[str, Any]:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        here = replace(plan, port=server.sockets[0].getsockname()[1])
        found = await run(here, wire_requests(here), time.monotonic())
        server.close()
        return found

    return asyncio.run(main()), len(connections)


def test_each_client_has_a_connection_and_sends_after_each_response() -> None:
    found, connections = load(PLAN)

    assert connections == 3
    assert len(found["responses"]) > 3
    assert {status for status, _ in found["responses"]} == {200}


def test_rejected_requests_are_counted_apart() -> None:
    found, _ = load(replace(PLAN, clients=1), ("503 Busy", "200 OK"))

    assert {status for status, _ in found["responses"]} == {200, 503}


def test_an_open_loop_sends_at_its_rate() -> None:
    found, _ = load(replace(PLAN, clients=0, rate_per_s=200))

    assert 20 <= len(found["responses"]) <= 60


def test_processes_share_clients_and_rate() -> None:
    closed, opened = replace(PLAN, clients=7).parts(3), replace(PLAN, clients=0, rate_per_s=90).parts(3)

    assert [part.clients for part in closed] == [3, 2, 2]
    assert [part.rate_per_s for part in opened] == [30, 30, 30]
    assert len({part.seed for part in closed}) == 3
    assert len(replace(PLAN, clients=2).parts(8)) == 2


def test_a_summary_counts_rows_and_the_busiest_process() -> None:
    found = [
        {"responses": [[200, 0.01]] * 99 + [[200, 0.5]], "cpu_share": 0.2},
        {"responses": [[503, 0.001]] * 4 + [[-1, 1.0]] * 2, "cpu_share": 0.6},
    ]

    values = summary(found, replace(PLAN, duration_s=2))

    assert values == pytest.approx(
        {
            "rows_per_s": 100,
            "p50_ms": 10,
            "p99_ms": 10,
            "rejected_per_s": 2,
            "failed_per_s": 1,
            "clients_cpu": 0.6,
            "client_processes": 2,
        }
    )
