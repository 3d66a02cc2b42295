"""Ask the admin port of a running proxy."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from shoal_schema.headers import ADMIN

_TIMEOUT_S = 10.0
_MAX_ERROR_CHARS = 300


class AskError(Exception):
    """The proxy cannot be asked; the message says why, and what would help."""


class AddressError(AskError):
    """What was given is not the address of a proxy."""


def ask(url: str, path: str) -> str:
    """Return the answer to ``GET path``.

    Raises:
        AskError: nobody answers, or not with 200.
    """
    with _answer(url, path, _TIMEOUT_S) as answer:
        return answer.read().decode(errors="replace")


def ask_lines(url: str, path: str, *, silent_s: float = _TIMEOUT_S) -> Iterator[str]:
    """Yield the lines of the answer to ``GET path`` as they come, each with its end.

    Raises:
        AskError: nobody answers, or not with 200; nothing comes for ``silent_s``; or the answer breaks off.
    """
    with _answer(url, path, silent_s) as answer:
        while line := answer.readline():
            yield line.decode(errors="replace")


@contextmanager
def _answer(url: str, path: str, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    connection = _connection(url, timeout_s)
    try:
        connection.request("GET", path, headers={ADMIN: "1"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read(_MAX_ERROR_CHARS).decode(errors="replace").strip()
            raise AskError(f"{url}{path} answers {answer.status}: {said}; is this the admin port (9090)?")
        yield answer
    except TimeoutError:
        raise AskError(f"{url} has said nothing for {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise AskError(f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from None
    finally:
        connection.close()


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or parts.scheme != "http":
        raise AddressError(f"{url!r} is not the address of a proxy; give one like http://127.0.0.1:9090")
    return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
