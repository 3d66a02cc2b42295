"""Deploy a real image classifier, send it 200 pictures from 32 callers, without batches and with them.

``make demo``, or ``python -m examples.demo``. It takes about a minute, needs no network, and stops
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
from examples.report import Answer, Round, bars, batch_counts, comparison, label_table
from examples.server import Server, ServerError

EXAMPLE = Path(__file__).parent / "cat"
UNBATCHED = """
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceService
metadata: {name: unbatched}
spec:
  model: {uri: "file:///models/cat"}
  batching: {maxBatchSize: 1}
"""
"""The same model, in batches of one picture."""
NEXT = """\
next, after `. .venv/bin/activate`:
  shoal serve examples/cat                            the model without a cluster; its page is /docs
  shoal bench --item examples/cat/picture.jpg         the highest rate of that server, and what limits it
  shoal local up --model cat=examples/cat/model       a cluster like this one that keeps running"""
REQUESTS = 200
CALLERS = 32
TIMEOUT_S = 60.0
JPEG = {"content-type": "image/jpeg"}
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
        files = list(picture_files(REQUESTS))
        unbatched_file = cluster.folder / "unbatched.yaml"
        unbatched_file.write_text(UNBATCHED)
        print("\nFirst without batches: the same model with maxBatchSize 1.")
        deploy(cluster, "unbatched", unbatched_file)
        unbatched = measure(cluster.server("unbatched"), "unbatched", files)
        cluster.kubectl("delete", "-f", str(unbatched_file))
        print("\nThen with batches of up to 32 pictures.")
        deploy(cluster, "cat", EXAMPLE)
        server = cluster.server("cat")
        batched = measure(server, "cat", files)
        print("\n".join(report(unbatched, batched, server)))
        print(f"\n$ kubectl get infsvc,pods\n{cluster.kubectl('get', 'infsvc,pods')}\n\n{NEXT}", flush=True)
        print("\nThe cluster of this demo stops now.", flush=True)
    require_cats(batched.answers)


def deploy(cluster: LocalCluster, name: str, manifest: Path) -> None:
    """Apply a service and wait until it is served."""
    shown = manifest.relative_to(Path.cwd()) if manifest.is_relative_to(Path.cwd()) else manifest.name
    started_s = time.monotonic()
    print(f"$ kubectl apply -f {shown}\n{cluster.kubectl('apply', '-f', str(manifest))}", flush=True)
    cluster.wait_until_ready(name)
    print(f"Ready {time.monotonic() - started_s:.1f} s after kubectl apply", flush=True)


def measure(server: Server, model: str, files: Sequence[tuple[str, bytes]]) -> Round:
    """Send all files, and return the answers and how long they took."""
    _check_interrupted()
    started_s = time.monotonic()
    answers = asyncio.run(ask(server, model, files))
    return Round(answers, time.monotonic() - started_s)


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


async def ask(server: Server, model: str, files: Sequence[tuple[str, bytes]]) -> list[Answer]:
    """Send each file in a request of its own, CALLERS at a time; return answers in file order."""
    limits = httpx.Limits(max_connections=CALLERS)
    waiting = iter(enumerate(files))
    answers: dict[int, Answer] = {}
    progress = tqdm(total=len(files), unit=" pictures", leave=False, disable=None)

    async def caller(client: httpx.AsyncClient) -> None:
        for index, (name, file) in waiting:
            answers[index] = await classify(client, model, name, file)
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


async def classify(client: httpx.AsyncClient, model: str, picture: str, file: bytes) -> Answer:
    """Send one JPEG as it is, and return its best label."""
    started_s = time.perf_counter()
    try:
        response = await client.post(f"/v1/models/{model}:predict", content=file, headers=JPEG)
    except httpx.TransportError as error:
        raise DemoError(f"no answer for the picture {picture}: {error!r}") from error
    latency_s = time.perf_counter() - started_s
    if response.status_code != httpx.codes.OK:
        raise DemoError(f"{picture} was answered with {response.status_code}: {response.text}")
    [prediction] = response.json()["predictions"]
    return Answer(picture, prediction["label"][0], prediction["probability"][0], latency_s)


def report(unbatched: Round, batched: Round, server: Server) -> list[str]:
    """Return the lines that say what happened, and what bounds the batched service."""
    return [
        "",
        *label_table(batched.answers),
        "",
        f"{len(batched.answers)} pictures from {CALLERS} callers:",
        *comparison(unbatched, batched),
        "",
        "batches the proxy made of them:",
        *bars(batch_counts(server.metrics())),
        "",
        f"what bounds the rate with batches: {server.bottleneck()}",
    ]


def require_cats(answers: Sequence[Answer]) -> None:
    """Raise DemoError unless the cats, uncut, were taken for cats."""
    for picture in ("cat", "chelsea"):
        label = next(answer.label for answer in answers if answer.picture == picture)
        if label not in CATS:
            raise DemoError(f"the picture {picture} shows a cat, but the answer was {label}")


if __name__ == "__main__":
    sys.exit(main())
