"""Asynchronous requests of tests, and their results."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from shoal_proxy.asynchronous.execution import AsyncRequests
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy

ASYNC = {"prefer": "respond-async"}


@contextmanager
def asynchronous_proxy(**settings: Any) -> Iterator[RunningProxy]:
    """Run a proxy that accepts asynchronous requests."""
    with running_proxy(**{"asynchronous__timeout_seconds": 60, "max_batch_size": 4, **settings}) as running:
        yield running


def requests_of(running: RunningProxy) -> AsyncRequests:
    """Return the asynchronous requests of a proxy."""
    assert running.proxy.asynchronous is not None
    return running.proxy.asynchronous


def accept(url: str, value: float = 1.0, **options: Any) -> str:
    """Send an asynchronous request; return the location of its result."""
    headers = {**ASYNC, **options.pop("headers", {})}
    response = plain.post(url + V2_PATH, json=v2_body([row(value)], id="mine"), headers=headers, **options)
    assert response.status_code == 202, response.text
    assert response.headers["preference-applied"] == "respond-async"
    location = response.headers["location"]
    assert re.fullmatch("/v2/models/double/results/[0-9a-f]{32}-[0-9a-f]{8}", location)
    assert response.json()["location"] == location
    return location


def result(url: str, location: str, **options: Any) -> httpx.Response:
    """Poll for a result, as a client does."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        response = plain.get(url + location, **options)
        if response.status_code != 202:
            return response
        assert response.headers["retry-after"] == "1"
        time.sleep(0.01)
    raise AssertionError("no result")


def outputs(response: httpx.Response) -> list[float]:
    """Return the values of a result."""
    assert response.status_code == 200, response.text
    data: list[float] = response.json()["outputs"][0]["data"]
    return data


def doubled(value: float) -> list[float]:
    """Return the result of the row of a value."""
    return [each * 2 for each in row(value)]
