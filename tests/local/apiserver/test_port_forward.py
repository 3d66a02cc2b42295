"""Connections through port-forward of an unmodified kubectl, to a pod with an address of this machine."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests import plain
from tests.local.apiserver.cluster import Object
from tests.local.apiserver.kubectl import Kubectl

pytestmark = pytest.mark.integration


@contextmanager
def forwarded(kubectl: Kubectl, port: int) -> Iterator[str]:
    """Forward a free port to a port of the pod ``one``; yield the local address."""
    command = kubectl.command("port-forward", "pod/one", f":{port}", "--address=127.0.0.1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        try:
            yield line.split()[2] if line else ""
        finally:
            process.terminate()


def run_pod(kubectl: Kubectl, pod: Object, address: str) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    kubectl("patch", "pod", "one", "--subresource=status", "--type=merge", "-p", json.dumps(status))


def test_a_forwarded_port_carries_many_connections_and_large_bodies(kubectl: Kubectl, pod: Object) -> None:
    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *_: object) -> None:
            pass

    address = "127.77.0.9"
    with ThreadingHTTPServer((address, 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run_pod(kubectl, pod, address)
        bodies = [bytes([n]) + os.urandom(n * 300_000) for n in range(8)]
        with forwarded(kubectl, server.server_port) as entry, ThreadPoolExecutor(8) as pool:

            def ask(body: bytes) -> bytes:
                return plain.post(f"http://{entry}/", content=body, trust_env=False, timeout=20).content

            assert list(pool.map(ask, bodies)) == [body[::-1] for body in bodies]
        server.shutdown()


def test_a_forwarded_port_where_nothing_listens_ends_the_connection(kubectl: Kubectl, pod: Object) -> None:
    run_pod(kubectl, pod, "127.77.0.8")
    with forwarded(kubectl, 9) as entry, pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        plain.get(f"http://{entry}/", trust_env=False, timeout=20)


def test_what_needs_streams_and_is_not_served_says_what_to_do(kubectl: Kubectl, pod: Object) -> None:
    run_pod(kubectl, pod, "127.77.0.7")
    assert "run the command here" in kubectl.refused("exec", "one", "--", "ls")
    assert "run the command here" in kubectl.refused("cp", "one:/etc/hostname", "/dev/null")
    assert "kubectl logs --follow" in kubectl.refused("attach", "one")


def test_forwarding_asks_for_its_own_permission(kubectl: Kubectl, pod: Object) -> None:
    run_pod(kubectl, pod, "127.77.0.6")
    kubectl("create", "role", "reader", "--verb=get", "--resource=pods,pods/portforward")
    kubectl("create", "rolebinding", "reader", "--role=reader", "--user=reader")
    complaint = kubectl.refused("port-forward", "one", ":80", "--as=reader")
    assert 'cannot create resource "pods/portforward"' in complaint
