"""Object stores to read models from: real servers of their protocols, on this machine."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import obstore
from obstore.store import S3Store

from tests.interop.environments import ROOT, python_with

START_TIMEOUT_S = 60.0
S3_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret-of-reader", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(port: int) -> Iterator[str]:
    """Run moto's S3 until the block ends; yield its address."""
    url = f"http://127.0.0.1:{port}"
    command = [str(python_with("moto")), "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_answering(url, process)
            yield url
        finally:
            process.terminate()


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


def _wait_until_answering(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            httpx.get(url, trust_env=False, timeout=5)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} does not answer")
