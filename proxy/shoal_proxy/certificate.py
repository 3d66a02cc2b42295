"""The certificate that callers are shown: read from files, tried in a handshake, and read again when the files change.

A new pair is used from the next handshake on; connections that are open keep theirs. One that is broken or half
written is told of and tried again when it changes: the old one goes on. Siblings show one another the same certificate,
and know one another by it: it names the service, not the address of a pod.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shoal_schema.environment import SettingsError

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""Between two looks at the files."""
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: that one has expired is for callers to judge."""
_MESSAGES: Final = 4


class CertificateError(SettingsError):
    """No handshake can be made with what is in the files; the message names them."""


class Pem(NamedTuple):
    """What is in the files; ``client_ca`` is empty where callers need no certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes


class Certificate:
    """The newest pair with which a handshake can be made.

    Args:
        certificate: file of the certificate and those between it and its authority, PEM.
        key: file of its key, PEM without a password.
        client_ca: file of the authorities of callers' certificates; empty: callers need none.

    Raises:
        CertificateError: no handshake can be made with them.
    """

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        self._files = (certificate, key, client_ca)
        self.pem = self._seen = self._read()
        self.shown: Sequence[bytes] = ()
        """The certificate, and the one before it, as a handshake carries them."""
        self._refused = ""
        """Why the newest is not used, as it was told."""
        self._use(self.pem)

    @property
    def mutual(self) -> bool:
        """Whether callers need a certificate too."""
        return bool(self._files[2])

    async def watch(self) -> None:
        """Look at the files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Use what is in the files, if that is something new and whole."""
        try:
            pem = self._read()
            if pem == self._seen:
                return
            self._seen = pem
            self._use(pem)
        except CertificateError as error:
            if str(error) != self._refused:  # a file that is missing is so at each look
                self._refused = str(error)
                logger.error("event=certificate_refused error=%r used=before", self._refused)
        else:
            self._refused = ""
            logger.info("event=certificate_changed expires=%r", self.expires)

    def _read(self) -> Pem:
        try:
            return Pem(*(Path(file).read_bytes() if file else b"" for file in self._files))
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from None

    def _use(self, pem: Pem) -> None:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        among = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        among.check_hostname = False
        among.verify_mode = ssl.CERT_NONE  # `is_sibling` looks instead
        try:
            for each in (context, among):
                each.load_cert_chain(certificate, key, password=_no_password)
            told, shown = _handshake(context, certificate)
            if client_ca:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # the first is what OpenSSL's are too
            raise CertificateError(f"{', '.join(filter(None, self._files))}: {error}") from None
        if self._read() != pem:
            raise CertificateError(f"{certificate} and {key} are being written")
        self.context = context
        """For the next handshake with a caller."""
        self.among = among
        """For the next one with a sibling."""
        self.pem = pem
        self.expires = told
        self.expires_s = ssl.cert_time_to_seconds(told)
        self.shown = (shown, *self.shown[:1])

    def is_sibling(self, shown: bytes | None) -> bool:
        """Return whether who showed this certificate has the key of ours, or of the one before."""
        return shown in self.shown


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


def _handshake(context: ssl.SSLContext, certificate: str) -> tuple[str, bytes]:
    """Return until when the certificate holds, and the certificate, as a caller is shown it."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.load_verify_locations(certificate)
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, server = asking.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for _ in range(_MESSAGES):
        for side in (caller, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    told, shown = caller.getpeercert(), caller.getpeercert(binary_form=True)
    assert told is not None
    assert shown is not None
    return str(told["notAfter"]), shown
