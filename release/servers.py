"""A package index and an OCI registry on this machine, which stand in for the public ones."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from socket import create_server

from release.workspace import Skipped, Workspace, program

START_S = 30.0
HOST = "127.0.0.1"
_CONFIGURATION = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {directory}}}, delete: {{enabled: true}}}}
http: {{addr: "{address}"}}
"""


@contextmanager
def package_index(work: Workspace) -> Iterator[str]:
    """Run an empty package index without credentials; yield its address."""
    port = _free_port()
    command = [program("pypi-server"), "run", "--port", str(port), "--interface", HOST, "--disable-fallback"]
    with _running([*command, "--passwords", ".", "--authenticate", ".", str(work.directory("index"))], port):
        yield f"{HOST}:{port}"


@contextmanager
def registry(work: Workspace) -> Iterator[str]:
    """Run an OCI registry; yield its address.

    Raises:
        Skipped: Debian's package docker-registry is not installed.
    """
    if shutil.which("docker-registry") is None:
        raise Skipped("there is no registry to push to: apt-get install docker-registry")
    address = f"{HOST}:{_free_port()}"
    file = work.scratch / "registry.yml"
    file.write_text(_CONFIGURATION.format(directory=work.directory("registry"), address=address))
    with _running(["docker-registry", "serve", str(file)], int(address.rpartition(":")[2])):
        yield address


def _free_port() -> int:
    with create_server((HOST, 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """Run a server until the end of the block.

    Raises:
        TimeoutError: it does not respond within 30 s.
    """
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            ends_s = time.monotonic() + START_S
            while not _responds(port):
                if process.poll() is not None or time.monotonic() > ends_s:
                    raise TimeoutError(f"{command[0]} does not respond on port {port}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def _responds(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()
