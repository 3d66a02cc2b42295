"""Triton's model repository extension, for the one served model."""

from typing import Final

from starlette.requests import ClientDisconnect, Request

from shoal_proxy.codecs.base import parse_json
from shoal_proxy.errors import BodyTooLarge, InvalidRequest

_MAX_BYTES: Final = 4096
"""The largest body of an index request."""


def index(name: str, version: str, unready_reason: str, *, ready: bool) -> list[dict[str, str]]:
    """Return the repository index in Triton's format.

    Args:
        name: the model's name.
        version: the model's version.
        unready_reason: the reason that the model is not ready; empty if it is.
        ready: whether to list ready models only.
    """
    if not unready_reason:
        return [{"name": name, "version": version, "state": "READY", "reason": ""}]
    return [] if ready else [{"name": name, "version": version, "state": "UNAVAILABLE", "reason": unready_reason}]


async def read_index_request(request: Request) -> bool:
    """Return whether an index request is for ready models only.

    Raises:
        BodyTooLarge: the body exceeds 4096 bytes.
        InvalidRequest: the body is malformed.
    """
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BYTES:
                raise BodyTooLarge(f"the body is over the limit of {_MAX_BYTES} bytes for index requests")
    # The response is never sent.
    except ClientDisconnect:
        return False
    document = parse_json(body) if body else {}
    ready = document.get("ready", False) if type(document) is dict else None
    if type(ready) is not bool:
        raise InvalidRequest('an index request must be a JSON object whose "ready" is true or false')
    return ready
