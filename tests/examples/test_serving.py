"""The examples as their users meet them: through ``shoal serve`` and HTTP."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from examples.server import serving
from tests import plain

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
CALLERS = 16


def post_all(url: str, requests: Iterable[dict[str, Any]]) -> list[httpx.Response]:
    """Send all at once, so that they share batches."""
    with (
        plain.Client(base_url=url, trust_env=False, timeout=60) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        return list(callers.map(lambda request: client.post(**request), requests))


def test_a_broken_picture_fails_alone(encoded: Callable[..., bytes], cat_picture: Image.Image) -> None:
    good, broken = encoded(cat_picture), encoded(cat_picture)[:2000]
    path, headers = "/v1/models/cat:predict", {"content-type": "image/jpeg"}
    with serving(EXAMPLES / "cat") as server:
        answers = post_all(
            server.url,
            [{"url": path, "headers": headers, "content": broken if n % 4 == 1 else good} for n in range(CALLERS)],
        )

    assert [answer.status_code for answer in answers] == [200, 400, 200, 200] * 4
    assert "not a whole JPEG or PNG (2000 bytes)" in answers[1].json()["error"]
    assert {answer.json()["predictions"][0]["class"][0] for answer in answers[2::4]} <= {
        281,
        282,
        285,
    }


def test_texts_of_all_lengths_share_batches_and_an_empty_one_fails_alone() -> None:
    texts = ["word " * length for length in (0, 1, 20, 300)] * 4
    with serving(EXAMPLES / "embed") as server:
        answers = post_all(
            server.url,
            [{"url": "/v1/models/embed:predict", "json": {"instances": [text]}} for text in texts],
        )

    assert [answer.status_code for answer in answers] == [400, 200, 200, 200] * 4
    assert "the text is empty" in answers[0].json()["error"]
    vectors = [answer.json()["predictions"][0] for answer in answers[1:4] + answers[5:8]]
    np.testing.assert_allclose(vectors[:3], vectors[3:], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["adder", "mlp"])
def test_rows_of_numbers_come_back_as_rows(name: str) -> None:
    rows = [[float(column + row) for column in range(16)] for row in range(3)]
    with serving(EXAMPLES / name) as server:
        [answer] = post_all(server.url, [{"url": f"/v1/models/{name}:predict", "json": {"instances": rows}}])

    predictions = np.array(answer.json()["predictions"])
    assert predictions.shape == (3, 16)
    if name == "adder":
        np.testing.assert_array_equal(predictions, np.array(rows) + 1)


def test_a_row_may_be_as_wide_as_the_parameter_says() -> None:
    with serving(EXAMPLES / "adder", fields={"model.parameters.columns": "3"}) as server:
        good, wrong = post_all(
            server.url,
            [{"url": "/v1/models/adder:predict", "json": {"instances": [row]}} for row in ([1, 2, 3], [1, 2])],
        )

    assert good.json() == {"predictions": [[2, 3, 4]]}
    assert wrong.status_code == 400
