from collections.abc import Iterator

import httpx
import pytest

from tests import plain
from tests.fakes import RunningProxy, running_proxy


@pytest.fixture
def running() -> Iterator[RunningProxy]:
    """Run a proxy in front of a model that doubles rows of four floats."""
    with running_proxy() as proxy:
        yield proxy


@pytest.fixture
def client(running: RunningProxy) -> Iterator[httpx.Client]:
    """Call it."""
    with plain.Client(base_url=running.url, timeout=20) as caller:
        yield caller
