"""The example of a graph over pictures: what it finds on its page, and what its detector does with other pages."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from examples.pipeline.detector.handler import Detector, jpeg
from examples.server import POLL_INTERVAL_S, free_ports, start, stop, tail
from shoal_runtime import ItemError
from tests import plain

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline"
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the example."""
    port, admin_port = free_ports(2)
    command = [sys.executable, "-m", "shoal", "serve", str(PIPELINE / "pipeline.yaml")]
    with tempfile.TemporaryFile() as log:
        process = start([*command, f"--port={port}", f"--admin-port={admin_port}"], log)
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, lambda: tail(log))
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(process)


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", words: Callable[[], str]) -> None:
    """Return when the graph is ready."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, words()
        assert time.monotonic() < ends_s, words()
        with suppress(httpx.TransportError):
            if plain.get(f"{url}/v2/models/pipeline/ready").status_code == 200:
                return
        time.sleep(POLL_INTERVAL_S)


@pytest.mark.integration
def test_each_picture_of_a_page_is_found_and_named_by_both(url: str) -> None:
    page = (PIPELINE / "page.jpg").read_bytes()
    picture: dict[str, Any] = {"headers": {"content-type": "image/jpeg"}, "timeout": 60}
    answer = plain.post(f"{url}/v1/models/pipeline:predict", content=page, **picture)
    (found,) = answer.json()["predictions"]

    assert [each[0] for each in found["label"]] == ["Egyptian cat", "espresso", "drilling platform", "bobsled"]
    assert np.diff(np.array(found["boxes"])[:, ::2], axis=1).min() > 200
    timing = answer.headers["server-timing"]
    assert all(f"{step};dur=" in timing for step in ("detect", "middle", "whole"))

    # What the graph says of a crop is what its two classifiers say of it.
    crops = plain.post(f"{url}/v1/models/detector:predict", content=page, **picture).json()["predictions"][0]
    assert (crops["count"], crops["boxes"]) == (4, found["boxes"])
    left, top, right, bottom = map(int, found["boxes"][0])
    crop = jpeg(Image.open(PIPELINE / "page.jpg").convert("RGB").crop((left, top, right, bottom)))
    asked: list[dict[str, Any]] = [
        plain.post(f"{url}/v1/models/{name}:predict", content=crop, **picture).json()["predictions"][0]
        for name in ("cat", "cat-whole")
    ]
    mean = np.mean([each["probability"] for each in asked], axis=0)
    np.testing.assert_allclose(found["probability"][0], mean, rtol=1e-3)
    assert found["label"][0][0] == asked[0]["label"][0]


def answers(*pages: bytes) -> dict[str, Any]:
    """Return what the detector says of pages."""
    detector = Detector()
    return detector.forward([detector.preprocess(page) for page in pages])


def page(*boxes: tuple[int, int, int, int]) -> bytes:
    """Return a page with dark rectangles."""
    image = Image.new("RGB", (400, 300), "white")
    for box in boxes:
        image.paste((40, 60, 80), box)
    return jpeg(image)


def test_pages_of_a_batch_have_as_many_boxes_as_they_have() -> None:
    found = answers(page((20, 20, 100, 120), (200, 30, 300, 110)), page(), page((50, 150, 150, 250)))

    assert found["count"].tolist() == [2, 0, 1]
    assert found["boxes"].shape == (3, 2, 4)
    assert found["boxes"][0] == pytest.approx(np.array([(20, 20, 100, 120), (200, 20, 300, 120)]), abs=12)
    assert found["crops"][1].tolist() == [b"", b""]


@pytest.mark.parametrize("junk", [b"", b"no picture", page()[:200]])
def test_what_is_no_picture_is_refused(junk: bytes) -> None:
    with pytest.raises(ItemError, match="not a whole JPEG or PNG"):
        answers(junk)
