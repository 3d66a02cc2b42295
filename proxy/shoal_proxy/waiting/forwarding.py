"""One request to one pod, and its answer back, both streamed by HTTP/1.1."""

from collections.abc import Awaitable, Callable

import httpcore

from shoal_proxy.errors import RuntimeLost
from shoal_proxy.waiting.passing import Headers, answer_headers, did_not_run

CONNECT_S = 2.0
Send = Callable[[dict[str, object]], Awaitable[None]]
NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout)


class Forwarder:
    """Connections to pods: each carries one request, so none is found closed by a pod that has gone."""

    def __init__(self) -> None:
        self._pool = httpcore.AsyncConnectionPool(max_connections=None, max_keepalive_connections=0)

    async def close(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    async def forward(self, pod: str, method: str, target: bytes, headers: Headers, body: bytes, send: Send) -> bool:
        """Return whether the pod's answer was sent on; else it did not run the request, which may be tried again.

        Raises:
            RuntimeLost: the pod went away with the request; nobody knows whether it ran.
        """
        host, _, port = pod.rpartition(":")
        url = httpcore.URL(scheme=b"http", host=host.strip("[]"), port=int(port), target=target)
        begun = False
        try:
            timeouts = {"timeout": {"connect": CONNECT_S}}
            async with self._pool.stream(
                method, url, headers=list(headers), content=body, extensions=timeouts
            ) as answer:
                if did_not_run(answer.status, answer.headers):
                    return False
                begun = True
                await send({
                    "type": "http.response.start", "status": answer.status, "headers": answer_headers(answer.headers),
                })  # fmt: skip
                async for piece in answer.aiter_stream():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except NOT_CONNECTED:
            return False
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            if begun:
                raise  # the caller's connection ends amid the answer, as the pod's has
            raise RuntimeLost(f"the pod went away with the request: {error!r}") from None
        return True
