"""The server certificate: read from files, verified, reloaded on change.

A new certificate is used from the next handshake on; open connections keep theirs. An invalid or half-written
certificate is logged, and the previous one stays in use until the files change again. Peers authenticate each other by
showing the same certificate, as it names the service and not the address of a pod.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shoal_schema.process.environment import SettingsError

logger = logging.getLogger(__name__)

RELOAD_S: Final = 2.0
"""The interval between checks of the files."""
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: clients decide about expired certificates."""
_MESSAGES: Final = 4
"""Most rounds of messages in a handshake."""


class CertificateError(SettingsError):
    """The files contain no working certificate; the message names the files."""


class CertificateFiles(NamedTuple):
    """Contents of the files of a certificate, its key and its authorities."""

    certificate: bytes
    key: bytes
    client_ca: bytes


class Certificate:
    """The newest valid pair of certificate and key.

    Args:
        certificate: PEM file of the certificate and its chain.
        key: PEM file of the private key, without a password.
        client_ca: file of the CAs of clients' certificates; empty if clients need no certificate.

    Raises:
        CertificateError: the files contain no working certificate.
    """

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        self._files = (certificate, key, client_ca)
        self.pem = self._seen = self._read()
        self.shown: Sequence[bytes] = ()
        """The current certificate and the previous one, in DER."""
        self._refused = ""
        """Logged reason that the newest pair is not used."""
        self._use(self.pem)

    @property
    def mutual(self) -> bool:
        """Whether clients need a certificate."""
        return bool(self._files[2])

    async def watch(self) -> None:
        """Reload the certificate when its files change, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_S)
            self.reload()

    def reload(self) -> None:
        """Load the certificate from the files, if it is new and valid."""
        try:
            pem = self._read()
            if pem == self._seen:
                return
            self._seen = pem
            self._use(pem)
        except CertificateError as error:
            if str(error) != self._refused:  # a missing file would be logged every time
                self._refused = str(error)
                logger.error("event=certificate_refused error=%r used=before", self._refused)
        else:
            self._refused = ""
            logger.info("event=certificate_changed expires=%r", self.expires)

    def _read(self) -> CertificateFiles:
        try:
            return CertificateFiles(*(Path(file).read_bytes() if file else b"" for file in self._files))
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from None

    def _use(self, pem: CertificateFiles) -> None:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Renegotiation lets a client cause handshakes without limit on one connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        # HTTP/2 is not supported.
        context.set_alpn_protocols(["http/1.1"])
        among = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        among.check_hostname = False
        among.verify_mode = ssl.CERT_NONE  # `is_peer` compares the certificate instead
        try:
            # Both sides of a connection between peers show the certificate.
            for each in (context, among):
                each.load_cert_chain(certificate, key, password=_no_password)
            not_after, shown = _handshake(context, certificate)
            if client_ca:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CertificateError(f"{', '.join(filter(None, self._files))}: {error}") from None
        # The files changed while OpenSSL read them.
        if self._read() != pem:
            raise CertificateError(f"{certificate} and {key} are being written")
        self.context = context
        """For handshakes with clients."""
        self.among = among
        """For handshakes with peers."""
        self.pem = pem
        self.expires = not_after
        self.expires_s = ssl.cert_time_to_seconds(not_after)
        # During a rotation peers may still show the previous certificate.
        self.shown = (shown, *self.shown[:1])

    def is_peer(self, shown: bytes | None) -> bool:
        """Return whether a peer's certificate is the current or the previous one."""
        return shown in self.shown


def _no_password() -> str:
    # Without this callback OpenSSL would prompt on the terminal.
    raise ValueError("the key is encrypted. Use a key without a password")


def _handshake(context: ssl.SSLContext, certificate: str) -> tuple[str, bytes]:
    """Verify a certificate by a handshake; return its expiry date and DER."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(certificate)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    # What one side writes, the other reads.
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for _ in range(_MESSAGES):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    fields, shown = client.getpeercert(), client.getpeercert(binary_form=True)
    assert fields is not None
    assert shown is not None
    return str(fields["notAfter"]), shown
