"""``GET /v1/load`` over a real socket: what a proxy says is what `shoal_schema.interfaces.load` declares."""

import asyncio

import httpx
import msgspec

from shoal_proxy.server import Proxy
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import INSTANCE
from shoal_schema.interfaces.load import MAX_BYTES, PATH, Load


def test_a_proxy_reports_its_load_as_declared_and_whose_it_is() -> None:
    async def main() -> httpx.Response:
        loopback = dict.fromkeys(("SHOAL_PROXY_LISTEN", "SHOAL_PROXY_ADMIN_LISTEN"), "127.0.0.1:0")
        own = {"SHOAL_PROXY_INSTANCE": "uid-1", "SHOAL_PROXY_DRAIN_DELAY_S": "0"}
        proxy = Proxy(Settings.from_env({**loopback, **own}))
        running = asyncio.ensure_future(proxy.run())
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.get(f"http://127.0.0.1:{proxy.admin_socket.getsockname()[1]}{PATH}")
        finally:
            proxy.stop()
            await running

    answer = asyncio.run(main())
    load = msgspec.json.decode(answer.content, type=Load)

    assert answer.headers["content-type"] == "application/json"
    assert answer.headers[INSTANCE] == "uid-1"
    assert len(answer.content) < MAX_BYTES
    assert (load.queued_rows, load.running_rows, load.arrived_rows) == (0, 0, 0)
    assert load.expected_wait_s is None  # there is no runtime
