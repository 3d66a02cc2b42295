"""One exchange with httpx: our requests and answers from and to its own, and its errors as ours."""

import argparse
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx

from shoal.errors import ConnectionFailed, DeadlineExceeded, InvalidInput, ServerFailed, WrongAddress
from shoal.wire.messages import Request, Response

CONNECT_TIMEOUT_S = 5.0
MAX_PORT = 65535
Verify = bool | str | os.PathLike[str] | ssl.SSLContext
"""Whether a server's certificate is looked at, a file of those whom to trust instead of the web's authorities, or both
and more in a context."""


def base_url(url: str) -> httpx.URL:
    """Return the base URL; ``127.0.0.1:8080`` means http."""
    try:
        base = httpx.URL(url if "://" in url else f"http://{url}")
    except httpx.InvalidURL as error:
        raise WrongAddress(f"{url} is not the address of a server: {error}") from error
    if base.scheme not in ("http", "https") or not base.host:
        raise WrongAddress(f"{url} is not the address of a server: give http://HOST:PORT")
    if base.port is not None and not 0 < base.port <= MAX_PORT:
        raise WrongAddress(f"{url} is not the address of a server: a port is 1 to {MAX_PORT}")
    return base


def base_urls(url: str | Sequence[str], *, alone: bool) -> list[httpx.URL]:
    """Return the base URLs of one model, which differ in where they lead and in nothing else.

    Raises:
        WrongAddress: one of them is none, there is none, their paths differ, or only one is allowed (``alone``).
    """
    urls = [base_url(each) for each in ((url,) if isinstance(url, str) else url)]
    if not urls:
        raise WrongAddress("give the address of at least one server")
    if len({each.path.rstrip("/") for each in urls}) > 1:
        raise WrongAddress("several addresses of one model must have the same path")
    if alone and len(urls) > 1:
        raise WrongAddress("a transport of your own leads to one address")
    return urls


def trust(verify: Verify, own: tuple[str, str | None] | None = None) -> ssl.SSLContext:
    """Return what a handshake needs.

    Args:
        verify: whom to trust.
        own: files of the caller's own certificate, and of its key where that is another.

    Raises:
        InvalidInput: a file cannot be used.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    try:
        if isinstance(verify, bool):
            context = httpx.create_ssl_context(verify=verify)
        else:
            context = ssl.create_default_context(cafile=verify)
            # A certificate that is in the file is trusted by itself, as by curl.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if own:
            context.load_cert_chain(*own)
    except OSError as error:
        named = ", ".join(str(each) for each in (verify, *(own or ())) if each and not isinstance(each, bool))
        raise InvalidInput(f"cannot use the certificates of {named}: {error.strerror or error}") from error
    return context


def trusted(options: argparse.Namespace) -> ssl.SSLContext:
    """Return what a handshake needs, as a command's options say."""
    return trust(options.ca_file or True, (options.cert, options.key) if options.cert else None)


def request_of(build: Callable[..., httpx.Request], request: Request, left_s: float) -> httpx.Request:
    """Return a request as ``build`` makes it, with ``left_s`` for each of its parts."""
    left_s = max(0.001, left_s)
    timeout = httpx.Timeout(left_s, connect=min(left_s, CONNECT_TIMEOUT_S))
    return build(request.method, request.path, headers=dict(request.headers), content=request.body, timeout=timeout)


def response_of(answer: httpx.Response) -> Response:
    """Return an answer that was read whole."""
    return Response(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content)


@contextmanager
def mapped_errors(timeout_s: float) -> Iterator[None]:
    """Turn the HTTP library's errors into ours, the most specific first."""
    try:
        yield
    except (httpx.ConnectTimeout, httpx.ConnectError) as error:
        raise ConnectionFailed(f"cannot reach {error.request.url}: {error or 'no answer'}") from error
    except httpx.TimeoutException as error:
        raise too_late(error.request, timeout_s) from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"the connection to {error.request.url} broke: {error}", may_have_run=True) from error
    except httpx.DecodingError as error:
        raise ServerFailed(f"the server's answer breaks its own encoding: {error}", may_have_run=True) from error


def too_late(request: httpx.Request, timeout_s: float) -> DeadlineExceeded:
    """Return the error of an exchange whose time is over."""
    return DeadlineExceeded(f"no answer from {request.url} within {timeout_s:g} s", may_have_run=True)
