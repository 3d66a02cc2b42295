"""A candidate that reports to be ready and then hangs, or floods: ``python -m benchmarks.rollout.hostile PORT WHAT``.

``WHAT`` is also the revision that it reports.
"""

import asyncio
import sys
from typing import Final

import orjson

from benchmarks.rollout import COLUMNS

HANG, DIE, FLOOD = "hang", "die", "flood"
FLOOD_BYTES: Final = 64 << 20
_GARBAGE: Final = b"\xff" * (1 << 18)


def page(head: bytes, revision: str) -> bytes:
    """Return the response to a GET request: ready, or the metadata of the model."""
    document: object = {"ready": True}
    if b"/ready " not in head:
        inputs, outputs = ([{"name": name, "datatype": "FP32", "shape": [-1, COLUMNS]}] for name in "xy")
        document = {"name": "model", "versions": ["1"], "inputs": inputs, "outputs": outputs}
    body = orjson.dumps(document)
    load = "endpoint-load-metrics: TEXT named_metrics.expected_wait_seconds=0.001"
    lines = f"x-shoal-instance: hostile\r\nx-shoal-revision: {revision}\r\n{load}\r\ncontent-length: {len(body)}"
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n\r\n".encode() + body


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
    """Serve one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get"):
                writer.write(page(head, what))
                continue
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            if what != FLOOD:
                await reader.read()
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % FLOOD_BYTES)
            for _ in range(FLOOD_BYTES // len(_GARBAGE)):
                writer.write(_GARBAGE)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main(port: int, what: str) -> None:
    """Serve until killed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_one(reader, writer, what)

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
