"""Loading of clients' keys from files and of a token issuer's keys by HTTP."""

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal_proxy.access.control import AccessControl
from shoal_proxy.access.keys import ApiKeys, parse_key_file
from shoal_proxy.access.limits import ClientLimits
from shoal_proxy.settings import Settings
from shoal_schema.process.environment import SettingsError

if TYPE_CHECKING:
    from shoal_proxy.access.tokens import TokenVerifier

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""The interval of checks of the files."""
FETCH_S: Final = 300.0
"""The interval of fetches of the issuer's keys; a token with an unknown key triggers one earlier."""
FETCH_AGAIN_S: Final = 10.0
"""The least interval of fetches."""
FETCH_WITHIN_S: Final = 5.0
MAX_BYTES: Final = 1 << 20
"""The largest Secret, and the largest key set of an issuer."""
_UNTRUSTED: Final = (
    "; the issuer's TLS certificate is not trusted. Set SSL_CERT_FILE to the file of its authority (in a cluster with"
    " proxy.env and proxy.volumeMounts)"
)
_PEM: Final = b"-----BEGIN "
"""Marks files to reject: each line of a certificate would be accepted as a key, and certificates are public."""
_SWAPPED: Final = "..data"
"""The link that a kubelet replaces when a Secret changes, so that all of its files change at once."""


class KeyFiles:
    """The clients' keys in a directory, or in a file of ``NAME=KEY`` lines."""

    def __init__(self, path: str, access_control: AccessControl) -> None:
        self._path = Path(path)
        self._access_control = access_control
        self._salt = secrets.token_bytes(32)
        self._seen: object = None
        self._changing: object = None
        self._fault = ""

    def reload(self) -> None:
        """Load changed key files; keep the previous keys if unreadable."""
        try:
            # A fingerprint of the files, from their names and metadata.
            stats = [(str(each), each.stat()) for each in (_files(self._path) if self._path.is_dir() else [self._path])]
            if not self._path.is_dir() and not self._path.is_file():
                raise ValueError("it is neither a file nor a directory")
            seen = [(name, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size) for name, stat in stats]
            if seen == self._seen:
                return
            # A Secret is replaced at once; other files must be unchanged for one interval, as they may be half-written.
            complete = self._seen is None or seen == self._changing or (self._path / _SWAPPED).is_symlink()
            self._changing = seen
            if not complete:
                return
            entries: dict[str, bytes]
            faults: Sequence[str]
            if self._path.is_dir():
                # Each file of the directory is one key, named like the file.
                files = {each.name: _bytes(each) for each in _files(self._path)}
                entries = {name: text for name, text in files.items() if _PEM not in text}
                faults = [
                    f"the file {name!r:.100} has a certificate or a private key, not a client key"
                    for name in files
                    if name not in entries
                ]
            else:
                entries, faults = parse_key_file(_bytes(self._path))
            self._seen = seen
        except (OSError, ValueError) as error:
            fault = str(error) if isinstance(error, ValueError) else f"{error.strerror}"
            message = f"{self._path} cannot be read: {fault}"
            if message != self._fault:
                self._fault = message
                logger.error("event=keys_unreadable message=%s", message)
            if self._access_control.keys is None:
                self._access_control.reasons["keys"] = f"the clients' keys in {self._path} cannot be read"
            return
        keys = self._access_control.keys = ApiKeys(entries, self._salt)
        self._fault = ""
        if keys.names:
            self._access_control.reasons.pop("keys", None)
        else:
            self._access_control.reasons["keys"] = f"there is no client key in {self._path}"
        logger.info("event=keys_read names=%d", len(keys.names))
        for fault in (*faults, *keys.faults)[:10]:
            logger.warning("event=key_passed_over message=%s", fault)

    async def watch(self) -> None:
        """Reload the keys when their files change, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.reload)  # a slow file system must not block requests


def _files(path: Path) -> list[Path]:
    # The directory behind the link is immutable, so its files belong together.
    swapped = path / _SWAPPED
    directory = swapped.resolve() if swapped.is_symlink() else path
    return sorted(each for each in directory.iterdir() if not each.name.startswith(".") and each.is_file())


def _bytes(path: Path) -> bytes:
    if os.stat(path).st_size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    text = path.read_bytes()
    if b"\0" in text:
        raise ValueError("it is not text")
    return text


class Issuer:
    """A token issuer, whose keys are fetched by HTTP."""

    def __init__(self, url: str, tokens: "TokenVerifier", access_control: AccessControl) -> None:
        self._url = url
        self._tokens = tokens
        self._access_control = access_control
        self._wanted = asyncio.Event()
        self._fetched_s = float("-inf")
        self._fault = ""
        tokens.look_again = self._fetch_soon
        access_control.reasons["issuer"] = "the issuer's keys have not been fetched yet"

    def _fetch_soon(self) -> bool:
        self._wanted.set()
        return time.monotonic() - self._fetched_s >= FETCH_AGAIN_S

    async def watch(self) -> None:
        """Fetch keys periodically and for unknown key ids, until cancelled."""
        import httpx  # noqa: PLC0415 (only needed with tokens)

        while True:
            self._wanted.clear()
            fault = ""
            try:
                async with httpx.AsyncClient(timeout=FETCH_WITHIN_S) as client, asyncio.timeout(FETCH_WITHIN_S):
                    body = b""
                    async with client.stream("GET", self._url) as response:
                        response.raise_for_status()
                        async for piece in response.aiter_bytes():
                            body += piece
                            if len(body) > MAX_BYTES:
                                raise ValueError(f"more than {MAX_BYTES} bytes")
                count = self._tokens.set_keys(json.loads(body))
            except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, ValueError, RecursionError) as error:
                remedy = _UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
                fault = f"{type(error).__name__}: {error}{remedy}"
                # Logged once per cause; the known keys stay in use.
                if fault != self._fault:
                    logger.error("event=issuer_keys_not_fetched url=%s error=%r", self._url, fault)
            else:
                self._access_control.reasons.pop("issuer", None)
                logger.debug("event=issuer_keys_fetched keys=%d", count)
            self._fault = fault
            self._fetched_s = time.monotonic()
            # The least interval, whatever tokens with unknown keys arrive.
            await asyncio.sleep(FETCH_AGAIN_S if self._tokens.ready else CHECK_S)
            try:
                async with asyncio.timeout(FETCH_S if self._tokens.ready else 0):
                    await self._wanted.wait()
            except TimeoutError:
                continue


def make_access_control(settings: Settings) -> tuple[AccessControl | None, Sequence[KeyFiles | Issuer]]:
    """Return the access control (None for open access) and its key sources.

    Raises:
        SettingsError: tokens are configured, but PyJWT is not installed.
    """
    header, jwt, limits = settings.access_header, settings.access_jwt, settings.access_limits
    if not settings.has_access_control:
        return None, ()
    tokens = None
    if jwt.issuer:
        try:
            from shoal_proxy.access.tokens import TokenVerifier  # noqa: PLC0415 (an extra)
        except ImportError:
            raise SettingsError("SHOAL_ACCESS_JWT_ISSUER needs PyJWT: pip install 'shoal[jwt]'") from None
        tokens = TokenVerifier(jwt.issuer, jwt.audience, jwt.scope or "", jwt.caller_claim)
    access_control = AccessControl(
        ClientLimits(limits.rows_per_second or {}, limits.rows_in_flight or {}),
        header=header.name.lower().encode(),
        gateways=header.keys,
        check_token=None if tokens is None else tokens.check,
    )
    watched: list[KeyFiles | Issuer] = []
    if tokens is not None:
        watched.append(Issuer(jwt.jwks_url, tokens, access_control))
    if settings.process.api_keys:
        files = KeyFiles(settings.process.api_keys, access_control)
        files.reload()
        watched.append(files)
    return access_control, watched
