"""Triton's model repository, of which every proxy holds one model."""

from typing import Final

from starlette.requests import ClientDisconnect, Request

from shoal_proxy.codecs.base import parse_json
from shoal_proxy.errors import BodyTooLarge, InvalidRequest

_MAX_BYTES: Final = 4096
"""Of a request for the index."""


def index(name: str, version: str, unready_reason: str, *, ready: bool) -> list[dict[str, str]]:
    """Return the index.

    Args:
        name: of the model.
        version: of the model.
        unready_reason: why it is not ready; empty where it is.
        ready: whether only ready models are asked for.
    """
    if not unready_reason:
        return [{"name": name, "version": version, "state": "READY", "reason": ""}]
    return [] if ready else [{"name": name, "version": version, "state": "UNAVAILABLE", "reason": unready_reason}]


async def read_index_request(request: Request) -> bool:
    """Return whether only ready models are asked for.

    Raises:
        BodyTooLarge: the body is no such request.
        InvalidRequest: it is malformed.
    """
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BYTES:
                raise BodyTooLarge(f"a request for the index has at most {_MAX_BYTES} bytes")
    except ClientDisconnect:
        return False
    document = parse_json(body) if body else {}
    ready = document.get("ready", False) if type(document) is dict else None
    if type(ready) is not bool:
        raise InvalidRequest('a request for the index is an object; its "ready" is true or false')
    return ready
