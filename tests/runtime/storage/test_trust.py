"""Servers of models whose certificate is of a private authority: every store trusts whom the environment names."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.fetching import Fetcher
from shoal_runtime.storage.trust import ADDED, BUNDLE, INSTEAD, root_certificates, tls_context, tls_fault
from tests.certificates import Authority
from tests.runtime.storage.stand_in import StandIn, secured, serving
from tests.runtime.storage.test_hub import Hub
from tests.runtime.storage.test_mlflow import Registry

TRUST = Authority()


class Objects(StandIn):
    """Keeps one object, under every path that ends in its name."""

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return it."""
        if unquote(path).partition("?")[0].endswith("/cat.txt"):
            return 200, b"cat", {"etag": '"1"', "last-modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        return 404, b"", {}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return TRUST.written(tmp_path / "ca")


@pytest.fixture(autouse=True)
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Serve each kind of store over TLS; the web's address goes into `URIS`."""
    for name in (*INSTEAD, *ADDED):
        monkeypatch.delenv(name, raising=False)
    own = TRUST.issue().written(tmp_path / "server")
    servers = objects, hub, registry = Objects(), Hub(), Registry()
    with ExitStack() as stack:
        for server in servers:
            secured(server, own)
            stack.enter_context(serving(server))
        given = {
            "AWS_ENDPOINT_URL": objects.url, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
            "AZURE_STORAGE_ENDPOINT": f"{objects.url}/acc", "AZURE_STORAGE_ACCOUNT_NAME": "acc",
            "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x", "GOOGLE_BASE_URL": objects.url, "GOOGLE_SKIP_SIGNATURE": "true",
            "HF_ENDPOINT": hub.url, "MLFLOW_TRACKING_URI": registry.url,
        }  # fmt: skip
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield {"https": f"{objects.url}/cat.txt"}


URIS = (
    "https",
    "s3://bucket/cat.txt",
    "gs://bucket/cat.txt",
    "az://box/cat.txt",
    "hf://team/encoder",
    "models:/iris/1",
)


def fetch(cache: Path, uri: str) -> list[Path]:
    found = Fetcher(cache, Readiness(), pause_s=lambda attempt: 0.0).fetch(uri)
    return [path for path in found.directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", *ADDED])
@pytest.mark.parametrize("uri", URIS)
def test_every_store_trusts_whom_each_variable_names(
    uri: str, name: str, bundle: Path, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(bundle))
    assert fetch(tmp_path / "cache", addresses.get(uri, uri))


@pytest.mark.parametrize("uri", URIS)
def test_without_a_trusted_authority_the_error_names_tls_and_the_setting(
    uri: str, addresses: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=r"TLS certificate of .* is not trusted") as error:
        fetch(tmp_path / "cache", addresses.get(uri, uri))
    for setting in (BUNDLE, "SSL_CERT_FILE", "model.caBundle"):
        assert setting in str(error.value)


@pytest.mark.parametrize("name", [*INSTEAD, *ADDED])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_variable_that_names_no_certificates_is_named(
    name: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(name, str(path))
    for function in (tls_context, root_certificates):
        with pytest.raises(LoadError, match=name):
            function()


def test_what_is_added_does_not_replace_the_usual_authorities(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tls_context().cert_store_stats()["x509_ca"]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    assert tls_context().cert_store_stats()["x509_ca"] == usual + 1
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert tls_context().cert_store_stats()["x509_ca"] == 1


def test_each_fault_of_tls_has_its_own_remedy() -> None:
    failed = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
    assert "is for another name" in tls_fault("a", f"{failed}Hostname mismatch, certificate is not valid for 'a'.")
    assert "is for another name" in tls_fault("a", "error: InvalidCertificate(\n NotValidForName")
    assert "expired" in tls_fault("a", f"{failed}certificate has expired (_ssl.c:1)")
    assert "https" in tls_fault("a", str(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version")))
    assert tls_fault("a", "Connection refused") == ""
