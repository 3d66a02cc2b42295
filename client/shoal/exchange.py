"""One HTTP exchange with httpx: conversion of requests and responses, TLS, and the mapping of errors."""

import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import httpx

from shoal.errors import ConnectionFailed, DeadlineExceeded, InvalidInput, ServerFailed, WrongAddress
from shoal.wire.messages import Request, Response
from shoal_schema.fields.redaction import redacted_value

CONNECT_TIMEOUT_S = 5.0
MAX_PORT = 65535
_ONE_SLASH = re.compile("(?i)https?:/(?!/)")
Verify = bool | str | os.PathLike[str] | ssl.SSLContext
"""Whether to verify a server's certificate, a file of trusted authorities instead of the public ones, or a context."""


def base_url(url: str) -> httpx.URL:
    """Parse a server's base URL; ``127.0.0.1:8080`` means http.

    Raises:
        WrongAddress: the URL is invalid; the message omits user, password and query.
    """
    address = url if "://" in url else f"http://{url}"
    wrong = f"{redacted_value(address)} is not the address of a server"
    try:
        base = httpx.URL(address)
    except httpx.InvalidURL as error:
        # The library quotes what it takes for the port or the host, which may be a part of a password.
        raise WrongAddress(f"{wrong}: {str(error).partition(':')[0]}") from None
    if base.scheme not in ("http", "https") or not base.host or _ONE_SLASH.match(url):
        raise WrongAddress(f"{wrong}: it must be http://HOST:PORT")
    if base.port is not None and not 0 < base.port <= MAX_PORT:
        raise WrongAddress(f"{wrong}: the port must be 1 to {MAX_PORT}")
    # Paths are appended to the address.
    if base.query or base.fragment:
        raise WrongAddress(f"{wrong}: it must have no query and no fragment")
    return base


def base_urls(url: str | Sequence[str], *, alone: bool) -> list[httpx.URL]:
    """Parse the base URLs of the replicas of one model.

    Raises:
        WrongAddress: a URL is invalid, there is none, the paths differ, or ``alone`` is set and there are several.
    """
    urls = [base_url(each) for each in ((url,) if isinstance(url, str) else url)]
    if not urls:
        raise WrongAddress("there is no address: pass at least one")
    if len({each.path.rstrip("/") for each in urls}) > 1:
        raise WrongAddress("all addresses of a model must have the same path")
    if alone and len(urls) > 1:
        raise WrongAddress("a custom transport takes one address, not several")
    return urls


def trust(verify: Verify, own: tuple[str, str | None] | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        verify: as in `Verify`; a context is returned unchanged.
        own: files of the client certificate, and of its key if separate.

    Raises:
        InvalidInput: a certificate or key file cannot be loaded.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    try:
        if isinstance(verify, bool):
            context = httpx.create_ssl_context(verify=verify)
        else:
            context = ssl.create_default_context(cafile=verify)
            # Trust a certificate in the file even if it is not an authority's, as curl does.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if own:
            context.load_cert_chain(*own)
    except OSError as error:
        named = ", ".join(str(each) for each in (verify, *(own or ())) if each and not isinstance(each, bool))
        raise InvalidInput(f"cannot use the certificates of {named}: {error.strerror or error}") from error
    return context


def trusted(options: SimpleNamespace) -> ssl.SSLContext:
    """Return the TLS context for a command's options --ca-file, --cert and --key."""
    return trust(options.ca_file or True, (options.cert, options.key) if options.cert else None)


def request_of(build: Callable[..., httpx.Request], request: Request, left_s: float) -> httpx.Request:
    """Convert a request to httpx's with ``build``; connecting, reading and writing may take ``left_s`` each."""
    # httpx treats a timeout of 0 as an immediate failure.
    left_s = max(0.001, left_s)
    timeout = httpx.Timeout(left_s, connect=min(left_s, CONNECT_TIMEOUT_S))
    return build(request.method, request.path, headers=dict(request.headers), content=request.body, timeout=timeout)


def response_of(response: httpx.Response) -> Response:
    """Convert an httpx response whose body has been read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status_code, headers, response.content)


@contextmanager
def mapped_errors(timeout_s: float) -> Iterator[None]:
    """Raise httpx's errors inside the block as errors of this package."""
    # The most specific first.
    try:
        yield
    except (httpx.ConnectTimeout, httpx.ConnectError) as error:
        raise ConnectionFailed(f"cannot reach {error.request.url}: {error or 'no response'}") from error
    except httpx.TimeoutException as error:
        raise too_late(error.request, timeout_s) from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"the connection to {error.request.url} broke: {error}", may_have_run=True) from error
    except httpx.DecodingError as error:
        raise ServerFailed(f"the response cannot be decoded: {error}", may_have_run=True) from error


def too_late(request: httpx.Request, timeout_s: float) -> DeadlineExceeded:
    """Return the error for a request without a response within ``timeout_s``."""
    return DeadlineExceeded(f"no response from {request.url} within {timeout_s:g} s", may_have_run=True)
