"""Stored forms of asynchronous requests and their results: a line of JSON, then the body."""

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.codecs.base import MAX_ROWS, HttpResponse
from shoal_schema.interfaces.protocols import HTTP

DELETED = 0
"""Status of a result that the client has deleted or cancelled."""
_END = b"\n"
_PROTOCOLS: Final = frozenset(protocol.label for protocol in HTTP.protocols if protocol.asynchronous)


class _RequestLine(Struct, omit_defaults=True):
    owner: str
    protocol: str
    headers: list[tuple[str, str]]
    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    level: Annotated[int, Meta(ge=0, le=9)]
    accepted_at: float
    deadline_at: float
    callback: str = ""


class _ResultLine(Struct, omit_defaults=True):
    owner: str
    status: int
    content_type: str = ""
    lines: str = ""


class StoredResult(NamedTuple):
    """A result, and the client that may fetch it."""

    owner: str
    response: HttpResponse
    age_s: float
    """Time since it was stored."""

    @property
    def is_deleted(self) -> bool:
        """Return whether the client has deleted the result, or cancelled the request."""
        return self.response.status == DELETED


class UnreadableRecord(ValueError):
    """An object of the store has no valid record."""


def encode_request(job: Job, wall_offset_s: float) -> bytes:
    """Return the record of a job's request.

    Args:
        job: a job with a request.
        wall_offset_s: seconds since 1970 minus monotonic seconds.
    """
    request = job.request
    assert request is not None
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.items()]
    line = _RequestLine(
        job.owner,
        request.protocol,
        headers,
        job.rows,
        job.level,
        job.accepted_s + wall_offset_s,
        job.deadline_s + wall_offset_s,
        request.callback,
    )
    return b"".join((msgspec.json.encode(line), _END, request.body))


def decode_request(job_id: str, record: bytes, wall_offset_s: float) -> Job:
    """Return the job of a record.

    Raises:
        UnreadableRecord: the record is invalid.
    """
    line, body = _split(record, _RequestLine)
    if line.protocol not in _PROTOCOLS:
        raise UnreadableRecord(f"an object of the store has the protocol {line.protocol!r:.80}, which is unknown")
    headers = {_bytes(name): _bytes(value) for name, value in line.headers}
    return Job(
        job_id,
        JobRequest(line.protocol, headers, body, line.callback),
        rows=line.rows,
        level=line.level,
        owner=line.owner,
        accepted_s=line.accepted_at - wall_offset_s,
        deadline_s=line.deadline_at - wall_offset_s,
    )


def owner_in(record: bytes) -> str:
    """Return the client of a request's record, of which the body may be missing.

    Raises:
        UnreadableRecord: the record is invalid.
    """
    owner: str = _split(record, _RequestLine)[0].owner
    return owner


def encode_result(owner: str, response: HttpResponse) -> bytes:
    """Return the record of a result."""
    line = _ResultLine(
        owner, response.status, response.content_type.decode("latin-1"), response.lines.decode("latin-1")
    )
    return b"".join((msgspec.json.encode(line), _END, *response.body))


def decode_result(record: bytes, age_s: float = 0.0) -> StoredResult:
    """Return the result of a record that was stored ``age_s`` ago.

    Raises:
        UnreadableRecord: the record is invalid.
    """
    line, body = _split(record, _ResultLine)
    if line.status != DELETED and not 100 <= line.status <= 599:
        raise UnreadableRecord(f"an object of the store has the status {line.status}")
    response = HttpResponse(line.status, (body,), _bytes(line.content_type), _bytes(line.lines))
    return StoredResult(line.owner, response, age_s)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise UnreadableRecord(f"an object of the store is not a record: {error.reason}") from None


def _split(record: bytes, kind: type[Any]) -> tuple[Any, bytes]:
    head, end, body = record.partition(_END)
    try:
        line = msgspec.json.decode(head, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecord(f"an object of the store is not a record: {error}") from None
    if not end:
        raise UnreadableRecord("an object of the store has no end of its first line")
    return line, body
