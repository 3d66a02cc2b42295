"""Certificate authorities trusted by all stores when models or rows are fetched.

The stores' own libraries honor different variables, and some of them trust only public authorities.
"""

import os
import re
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Final

import certifi

from shoal_runtime.errors import LoadError

BUNDLE: Final = "SHOAL_MODEL_CA_BUNDLE"
ADDED: Final = (BUNDLE, "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Files, or directories as OpenSSL uses them, of authorities that are trusted besides the usual ones."""
INSTEAD: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Files or directories of authorities that replace the usual ones, as in OpenSSL."""
REMEDY: Final = (
    f"name the file of its authority in {BUNDLE} or SSL_CERT_FILE, or in a cluster its ConfigMap or Secret in"
    " model.caBundle"
)
_UNTRUSTED: Final = re.compile("CERTIFICATE_VERIFY_FAILED|InvalidCertificate", re.IGNORECASE)
_OTHER_NAME: Final = re.compile("mismatch|NotValidForName", re.IGNORECASE)
_NOT_NOW: Final = re.compile("expired|not yet valid|NotValidYet", re.IGNORECASE)
_NO_TLS: Final = re.compile(r"\[SSL|InvalidContentType|InvalidMessage", re.IGNORECASE)


def tls_context() -> ssl.SSLContext:
    """Return a TLS context for clients that trusts the authorities in the environment.

    Raises:
        LoadError: a variable does not name certificates.
    """
    return _context(tuple((name, os.environ.get(name, "")) for name in (*INSTEAD, *ADDED)))


def root_certificates() -> bytes:
    """Return all certificates that the environment names, in PEM; empty if there are none.

    Raises:
        LoadError: a variable does not name certificates.
    """
    named = [Path(value) for name in (*INSTEAD, *ADDED) if (value := os.environ.get(name))]
    if named:
        tls_context()  # checks them
    # obstore takes PEM text, not paths.
    files = [file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return b"\n".join(file.read_bytes() for file in files if file.is_file())


def tls_fault(host: str, text: str) -> str:
    """Return an error message with its remedy if a library's error is about TLS, else an empty text."""
    if _UNTRUSTED.search(text):
        certificate = f"the TLS certificate of {host}"
        if _OTHER_NAME.search(text):
            return f"{certificate} is for another name. Correct the address, or the certificate"
        if _NOT_NOW.search(text):
            return f"{certificate} has expired or is not valid yet. Renew it, or correct the clock"
        return f"{certificate} is not trusted: {REMEDY}"
    return f"TLS with {host} failed. Check that the server supports https" if _NO_TLS.search(text) else ""


@lru_cache(maxsize=1)
def _context(given: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    named = {name: value for name, value in given if value}
    # Loaded once more by itself: OpenSSL skips a file that it cannot read.
    for name, value in named.items():
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), name, value)
    context = ssl.create_default_context()
    if not any(name in named for name in INSTEAD):
        context.load_verify_locations(certifi.where())  # an image may have no system certificates
    for name in ADDED:
        if name in named:
            _load(context, name, named[name])
    return context


def _load(context: ssl.SSLContext, name: str, value: str) -> None:
    try:
        if Path(value).is_dir():
            context.load_verify_locations(capath=value)
        else:
            context.load_verify_locations(cafile=value)
    except (OSError, ssl.SSLError) as error:
        why = "it has none" if isinstance(error, ssl.SSLError) else error.strerror
        raise LoadError(f"{name} must name a file of certificates in PEM: {why}") from None
