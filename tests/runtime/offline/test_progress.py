"""How far a job is, as it is told to whoever asks."""

import json
from urllib.request import urlopen

import pytest

from shoal_runtime.offline.progress import Tally, listen
from shoal_schema.addresses import TcpAddress


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_pods_of_either_family_tell_how_far_they_are(host: str) -> None:
    port = listen(TcpAddress(host, 0), Tally(rows=3))

    with urlopen(f"http://{TcpAddress(host, port)}/v1/progress", timeout=10) as answer:
        assert json.load(answer)["own"]["rows"] == 3
