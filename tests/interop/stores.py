"""Object stores to read models from: real servers of their protocols, on this machine."""

import base64
import hashlib
import hmac
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import obstore
from obstore.store import S3Store, from_url

from tests.interop.environments import ROOT, npm_program, python_with
from tests.ports import free_port

START_TIMEOUT_S = 60.0
S3_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret-of-reader", "AWS_REGION": "us-east-1"}
ACCOUNT = "devstoreaccount1"
# Azurite's default credentials, from its documentation.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True, slots=True)
class Cloud:
    """A running store: what a process needs to find it, and how a bucket is filled."""

    scheme: str
    environment: Mapping[str, str]
    fill: Callable[[str, Mapping[str, bytes]], object]


@contextmanager
def running(command: list[str], url: str, *, timeout_s: float = START_TIMEOUT_S, **options: Any) -> Iterator[None]:
    """Run a server, which answers at ``url``, until the block ends."""
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **{"cwd": ROOT, **silent, **options}) as process:
        try:
            _wait_until_answering(url, process, timeout_s)
            yield
        finally:
            process.terminate()


@contextmanager
def s3_server(port: int) -> Iterator[str]:
    """Run moto's S3 until the block ends; yield its address."""
    url = f"http://127.0.0.1:{port}"
    with running([str(python_with("moto")), "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)], url):
        yield url


@contextmanager
def s3() -> Iterator[Cloud]:
    """Run a stand-in for S3."""
    with s3_server(free_port()) as url:
        yield Cloud("s3", environment(url), lambda bucket, files: fill(url, bucket, files))


@contextmanager
def gcs() -> Iterator[Cloud]:
    """Run a stand-in for Google Cloud Storage."""
    host = f"127.0.0.1:{free_port()}"
    url, package = f"http://{host}", python_with("gcs").parents[1] / "lib"
    (program,) = package.glob("python*/site-packages/*/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64")
    program.chmod(0o755)
    place = ["-scheme", "http", "-host", "127.0.0.1", "-port", host.partition(":")[2]]

    def fill_bucket(bucket: str, files: Mapping[str, bytes]) -> None:
        httpx.post(f"{url}/storage/v1/b?project=p", json={"name": bucket}, trust_env=False).raise_for_status()
        for key, content in files.items():
            where = f"{url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            httpx.post(where, content=content, trust_env=False).raise_for_status()

    with running([str(program), *place, "-backend", "memory", "-external-url", url, "-public-host", host], url):
        yield Cloud("gs", {"GOOGLE_BASE_URL": url, "GOOGLE_SKIP_SIGNATURE": "true"}, fill_bucket)


@contextmanager
def azure() -> Iterator[Cloud]:
    """Run a stand-in for Azure's blobs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    settings = {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
    }

    def fill_container(container: str, files: Mapping[str, bytes]) -> None:
        _make_container(f"{url}/{ACCOUNT}/{container}")
        credentials: Any = {name.lower(): value for name, value in settings.items()}
        store = from_url(f"az://{container}", config=credentials, client_options={"allow_http": True})
        for key, content in files.items():
            obstore.put(store, key, content)

    with running([str(npm_program("azurite", "azurite-blob")), *options, *place], url):
        yield Cloud("az", settings, fill_container)


def _make_container(url: str) -> None:
    """Ask Azure for a container, signed with the account's key; obstore makes none."""
    headers = {"x-ms-date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()), "x-ms-version": "2021-12-02"}
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    resource = f"/{ACCOUNT}{urlsplit(url).path}\nrestype:container"
    text = f"PUT{12 * chr(10)}{canonical}{resource}"
    signed = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
    httpx.put(f"{url}?restype=container", headers=headers, trust_env=False).raise_for_status()


def fill(url: str, bucket: str, files: Mapping[str, bytes]) -> S3Store:
    """Put these objects into a new bucket."""
    httpx.put(f"{url}/{bucket}", trust_env=False).raise_for_status()
    store = S3Store(
        bucket,
        endpoint=url,
        access_key_id=S3_CREDENTIALS["AWS_ACCESS_KEY_ID"],
        secret_access_key=S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region=S3_CREDENTIALS["AWS_REGION"],
        client_options={"allow_http": True},
    )
    for key, content in files.items():
        obstore.put(store, key, content)
    return store


def environment(url: str) -> dict[str, str]:
    """Return what a process needs to find the server and its credentials."""
    return {**S3_CREDENTIALS, "AWS_ENDPOINT_URL": url}


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder."""
    return {os.path.relpath(path, folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _wait_until_answering(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            httpx.get(url, trust_env=False, timeout=5)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} does not answer")
