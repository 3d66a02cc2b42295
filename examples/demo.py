"""Deploy a real image classifier, send it 200 pictures from 32 callers, print what happened.

``make demo``, or ``python -m examples.demo``. It takes half a minute, needs no network, and stops
what it started, also on Ctrl-C.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import skimage.data
from PIL import Image
from tqdm import tqdm

from examples.cluster import LocalCluster, local_cluster
from examples.report import Answer, bars, batch_counts, label_table, percentile
from examples.server import Server, ServerError

EXAMPLE = Path(__file__).parent / "cat"
REQUESTS = 200
CALLERS = 32
TIMEOUT_S = 60.0
PICTURES = ("cat", "chelsea", "coffee", "camera", "rocket", "astronaut")
CATS = {"tabby", "tiger cat", "Egyptian cat"}
INTERRUPTED = 130

_interrupted = threading.Event()


class DemoError(Exception):
    """Something that should have worked did not."""


def main() -> int:
    """Run the demo; return its exit status."""
    # What `kill` sends ends like Ctrl-C: through the with blocks, which stop the server. Both are set here,
    # because a shell's background job inherits SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        run()
        _check_interrupted()
    except (ServerError, DemoError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return INTERRUPTED
    return 0


def _interrupt(number: int, frame: object) -> None:
    """Raise as Ctrl-C does, and remember it: an exception that lands in a destructor is swallowed."""
    _interrupted.set()
    raise KeyboardInterrupt


def _check_interrupted() -> None:
    if _interrupted.is_set():
        raise KeyboardInterrupt


def run() -> None:
    """Start a cluster, deploy, ask, report."""
    print("$ shoal local up --model cat=examples/cat/model", flush=True)
    started_s = time.monotonic()
    with local_cluster({"cat": EXAMPLE / "model"}) as cluster:
        print(f"A cluster of one machine runs after {time.monotonic() - started_s:.1f} s.", flush=True)
        started_s = time.monotonic()
        server = deploy(cluster)
        print(f"Ready {time.monotonic() - started_s:.1f} s after kubectl apply at {server.url}", flush=True)
        files = list(picture_files(REQUESTS))
        _check_interrupted()
        started_s = time.monotonic()
        answers = asyncio.run(ask(server, files))
        elapsed_s = time.monotonic() - started_s
        metrics = server.metrics()
        print("\n".join(report(answers, elapsed_s, metrics)))
        print(f"\n$ kubectl get infsvc,pods\n{cluster.kubectl('get', 'infsvc,pods')}", flush=True)
    require_cats(answers)


def deploy(cluster: LocalCluster) -> Server:
    """Apply the example and wait until it is served."""
    print(f"$ kubectl apply -f examples/cat\n{cluster.kubectl('apply', '-f', str(EXAMPLE))}", flush=True)
    cluster.wait_until_ready("cat")
    return cluster.server("cat")


def picture_files(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and JPEG files: each picture as it is, then cut and scaled in other ways."""
    generator = np.random.default_rng(1)
    images = {name: Image.fromarray(getattr(skimage.data, name)()) for name in PICTURES}
    for index in range(count):
        name = PICTURES[index % len(PICTURES)]
        share = 1.0 if index < len(PICTURES) else generator.uniform(0.85, 1.0)
        yield name, jpeg(cut(images[name], share))


def cut(image: Image.Image, share: float) -> Image.Image:
    """Return the middle ``share`` (0 to 1) of a picture, at most 480 pixels a side."""
    width, height = image.size
    left, top = int(width * (1 - share) / 2), int(height * (1 - share) / 2)
    part = image.crop((left, top, width - left, height - top))
    part.thumbnail((480, 480))
    return part


def jpeg(image: Image.Image) -> bytes:
    """Return the picture as a JPEG file."""
    file = BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


async def ask(server: Server, files: Sequence[tuple[str, bytes]]) -> list[Answer]:
    """Send each file in a request of its own, CALLERS at a time; return answers in file order."""
    limits = httpx.Limits(max_connections=CALLERS)
    waiting = iter(enumerate(files))
    answers: dict[int, Answer] = {}
    progress = tqdm(total=len(files), unit=" pictures", leave=False, disable=None)

    async def caller(client: httpx.AsyncClient) -> None:
        for index, (name, file) in waiting:
            answers[index] = await classify(client, name, file)
            progress.update()

    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=TIMEOUT_S, trust_env=False) as client:
        with progress:
            await together(caller(client) for _ in range(CALLERS))
    return [answers[index] for index in range(len(files))]


async def together(callers: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all; when one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in callers:
                group.create_task(each)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def classify(client: httpx.AsyncClient, picture: str, file: bytes) -> Answer:
    """Send one JPEG as it is, and return its best label."""
    started_s = time.perf_counter()
    try:
        response = await client.post("/v1/models/cat:predict", content=file, headers={"content-type": "image/jpeg"})
    except httpx.TransportError as error:
        raise DemoError(f"no answer for the picture {picture}: {error!r}") from error
    latency_s = time.perf_counter() - started_s
    if response.status_code != httpx.codes.OK:
        raise DemoError(f"{picture} was answered with {response.status_code}: {response.text}")
    [prediction] = response.json()["predictions"]
    return Answer(picture, prediction["label"][0], prediction["probability"][0], latency_s)


def report(answers: Sequence[Answer], elapsed_s: float, metrics: str) -> list[str]:
    """Return the lines that say what happened."""
    latencies_ms = [answer.latency_s * 1000 for answer in answers]
    return [
        *label_table(answers),
        "",
        f"{len(answers)} pictures from {CALLERS} callers in {elapsed_s:.1f} s:"
        f" {len(answers) / elapsed_s:.0f} requests/s,"
        f" p50 {percentile(latencies_ms, 0.5):.0f} ms, p99 {percentile(latencies_ms, 0.99):.0f} ms",
        "",
        "batches the proxy made of them:",
        *bars(batch_counts(metrics)),
    ]


def require_cats(answers: Sequence[Answer]) -> None:
    """Raise DemoError unless the cats, uncut, were taken for cats."""
    for picture in ("cat", "chelsea"):
        label = next(answer.label for answer in answers if answer.picture == picture)
        if label not in CATS:
            raise DemoError(f"the picture {picture} shows a cat, but the answer was {label}")


if __name__ == "__main__":
    sys.exit(main())
