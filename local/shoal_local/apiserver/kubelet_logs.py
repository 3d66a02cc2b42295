"""Passes a container's log on from the kubelet, as it grows."""

from collections.abc import AsyncIterator

import httpx
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shoal_local.apiserver.errors import ApiError, internal

_CONNECT = httpx.Timeout(None, connect=5.0)


async def log_response(url: str) -> Response:
    """Return the log at the kubelet's address, streamed.

    Raises:
        ApiError: 500, the kubelet does not answer; else what the kubelet said.
    """
    if not url:
        return PlainTextResponse("")
    # Loopback must not go through a proxy that the environment names.
    client = httpx.AsyncClient(timeout=_CONNECT, trust_env=False)
    try:
        answer = await client.send(client.build_request("GET", url), stream=True)
    except httpx.HTTPError as error:
        await client.aclose()
        raise internal(f'Get "{url}": {error}') from None
    if answer.status_code != 200:
        told = (await answer.aread()).decode(errors="replace").strip()
        await client.aclose()
        reason = "BadRequest" if answer.status_code == 400 else "NotFound"
        raise ApiError(answer.status_code, reason, told)
    return StreamingResponse(_passed_on(client, answer), media_type="text/plain")


async def _passed_on(client: httpx.AsyncClient, answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError:
        # The kubelet or the container went away: the log ends here.
        return
    finally:
        await answer.aclose()
        await client.aclose()
