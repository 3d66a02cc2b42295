"""Progress of a job, as it is served."""

import json
from urllib.request import urlopen

import pytest

from shoal_runtime.offline.progress import JobTally, serve_progress
from shoal_schema.fields.addresses import TcpAddress


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_progress_is_served_over_ipv4_and_ipv6(host: str) -> None:
    port = serve_progress(TcpAddress(host, 0), JobTally(rows=3))

    with urlopen(f"http://{TcpAddress(host, port)}/v1/progress", timeout=10) as response:
        assert json.load(response)["own"]["rows"] == 3
