import asyncio
from io import BytesIO

import httpx
import pytest
from PIL import Image

from examples.demo import (
    DemoError,
    classify,
    picture_files,
    require_cats,
    together,
)
from examples.report import Answer, Round, comparison


def answer(picture: str, label: str) -> Answer:
    return Answer(picture, label, 0.5, latency_s=0.01)


def test_pictures_are_small_jpegs_with_the_cat_among_them() -> None:
    files = list(picture_files(8))

    assert files[0][0] == "cat"
    assert files[0][1] != files[6][1]  # the same cat, cut in another way
    assert all(max(Image.open(BytesIO(file)).size) <= 480 for _, file in files)


def test_the_same_pictures_are_sent_every_time() -> None:
    assert list(picture_files(8)) == list(picture_files(8))


def test_a_cat_that_is_no_cat_is_an_error() -> None:
    require_cats([answer("cat", "tabby"), answer("chelsea", "Egyptian cat")])

    with pytest.raises(DemoError, match="the picture cat shows a cat, but the answer was teapot"):
        require_cats([answer("cat", "teapot"), answer("chelsea", "Egyptian cat")])


def test_the_comparison_tells_rates_latencies_and_their_ratio() -> None:
    answers = [answer("cat", "tabby")] * 4
    _, single, batches, ratio = comparison(Round(answers, elapsed_s=4.0), Round(answers, elapsed_s=2.0))

    assert single.split()[-7:] == ["4.0", "s", "1.0", "10", "ms", "10", "ms"]
    assert batches.split()[:4] == ["batches", "2.0", "s", "2.0"]
    assert "2.0 times" in ratio


def test_an_error_answer_is_told_with_its_sentence() -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"error": "the queue is full"})

    async def ask() -> None:
        transport = httpx.MockTransport(refuse)
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
            await classify(client, "cat", "cat", b"")

    with pytest.raises(DemoError, match=r"cat was answered with 503: .*the queue is full"):
        asyncio.run(ask())


def test_one_failing_caller_stops_the_others() -> None:
    async def fail() -> None:
        raise DemoError("first")

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DemoError, match="first"):
        asyncio.run(together([wait_for_ever(), fail(), wait_for_ever()]))
