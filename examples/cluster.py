"""Run ``shoal local`` beside a program, deploy an example in it with kubectl, and stop it all at the end.

A guardian process holds the end of a pipe whose other end only this program has: however this program ends, also by
kill -9, the pipe closes and the guardian takes the cluster down. That is the only way in which it is taken down.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.server import Server, ServerError

KUBECTL = Path(sys.executable).parent / "kubectl"
READY_TIMEOUT_S = 120
EVENTS = 8
GUARD = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.read()
sys.exit(subprocess.call([sys.executable, "-m", "shoal_local", "down", "--dir", sys.argv[1]]))
"""


@dataclass(frozen=True)
class LocalCluster:
    """A cluster of this machine; ``folder`` keeps its files."""

    folder: Path

    def kubectl(self, *args: str) -> str:
        """Run kubectl and return what it prints.

        Raises:
            ServerError: it failed; the message holds its own.
        """
        environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}
        command = [str(KUBECTL), "--cache-dir", str(self.folder / "kubectl"), *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerError(f"kubectl {' '.join(args)} failed: {done.stderr.strip()}")
        return done.stdout.rstrip()

    def wait_until_ready(self, service: str) -> None:
        """Wait until an InferenceService is served.

        Raises:
            ServerError: it is not, in time; the message holds its last Events and what its pods said last.
        """
        try:
            self.kubectl("wait", "--for=condition=Ready", f"infsvc/{service}", f"--timeout={READY_TIMEOUT_S}s")
        except ServerError as error:
            raise ServerError(f"{error}\n{self.last_words(service)}") from None

    def last_words(self, service: str) -> str:
        """Return the last Events, and the last line of each container of a service and of the operator."""
        events = self._asked("get", "events", "-A", "--sort-by=.metadata.creationTimestamp").splitlines()
        logs = [
            self._asked("logs", "-n", space, "-l", label, "--all-containers", "--prefix", "--tail=1")
            for space, label in (
                ("default", f"serving.shoal.dev/inferenceservice={service}"),
                ("shoal-system", "app.kubernetes.io/name=shoal"),
            )
        ]
        pods = self._asked("get", "pods", "-A")
        return "\n".join(["last events:", *events[-EVENTS:], "pods:", pods, "last lines of their logs:", *logs])

    def _asked(self, *args: str) -> str:
        try:
            return self.kubectl(*args)
        except ServerError as error:
            return str(error)

    def server(self, service: str) -> Server:
        """Return where a service, and the first of its pods, are reached."""
        address = self.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
        selector = f"serving.shoal.dev/inferenceservice={service}"
        pod = self.kubectl("get", "pods", "-l", selector, "-o", "jsonpath={.items[0].status.podIP}")
        host, _, port = address.rpartition(":")
        # A plain user's cluster listens 8000 above a port that only the superuser may take.
        reached = next((p for p in (int(port), int(port) + 8000) if listens(host, p)), int(port))
        return Server(f"http://{host}:{reached}", f"http://{pod}:9090", os.getpid())


def listens(host: str, port: int) -> bool:
    """Return whether a server accepts connections at the address."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def local_cluster(models: dict[str, Path]) -> Iterator[LocalCluster]:
    """Start a cluster that shows ``models`` to its pods as ``file:///models/NAME``; stop it when the block ends.

    Raises:
        ServerError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as folder:
        guardian = subprocess.Popen([sys.executable, "-c", GUARD, folder], stdin=subprocess.PIPE, process_group=0)
        try:
            options = [part for name, path in models.items() for part in ("--model", f"{name}={path}")]
            command = [sys.executable, "-m", "shoal_local", "up", "--dir", folder, *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False, process_group=0)
            if done.returncode:
                raise ServerError(f"shoal local up failed: {done.stderr.strip()}")
            sys.stderr.write(done.stderr)
            yield LocalCluster(Path(folder))
        finally:
            assert guardian.stdin is not None
            guardian.stdin.close()
            guardian.wait()
