"""How far a job is, as it is told to whoever asks."""

import json
import socket
from urllib.request import urlopen

import pytest

from shoal_runtime.offline.progress import Tally, listen
from shoal_schema.addresses import parse_tcp_address


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_pods_of_either_family_tell_how_far_they_are(host: str, family: socket.AddressFamily) -> None:
    with socket.socket(family) as free:
        free.bind((host, 0))
        port = free.getsockname()[1]

    listen(parse_tcp_address(f"[{host}]:{port}"), Tally(rows=3))

    with urlopen(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/progress", timeout=10) as answer:
        assert json.load(answer)["rows"] == 3
