"""``shoal bench``: load a server until it bends, and say where, why, and what to change."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import orjson

from shoal.benching.advice import advice
from shoal.benching.drawing import COLOURS, bars, by_rate, legend, steps_table, svg
from shoal.benching.knee import Knee, find, judge, next_rate, run_s
from shoal.benching.samples import sample
from shoal.benching.steps import PARTS, Run, Step, limit_ms, percentile, summarize
from shoal.client import Client
from shoal.errors import InvalidInput, ServerFailed
from shoal.exchange import base_url, trusted
from shoal.files import given_item, plain
from shoal.keys import key_in, shown
from shoal.loading import Load
from shoal.wire.items import many_items, one_item
from shoal.wire.messages import Request, infer_request
from shoal.wire.signature import Signature
from shoal_schema.bounds import Bound
from shoal_schema.metrics import ROWS

ADMIN_PORT = 9090
STEPS = 10
"""That the time is shared among; a step of too few requests takes longer."""
MIN_STEP_S = 0.5
ALONE_REQUESTS = 20
_PICTURES = (".svg", ".png")


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found: a request's time alone, how late an answer may be, and the steps as they were first run."""

    alone_ms: float
    within_ms: float
    steps: list[Step]


def bench(options: argparse.Namespace) -> int:
    """Load the server and print what came of it."""
    _check_picture(options.plot)
    key, context = key_in(options.api_key_file), trusted(options)
    with Client(options.url, options.model, timeout_s=options.timeout, api_key=key, verify=context) as client:
        signature = client.signature()
        item = given_item(options, options.item)
        item = plain(sample(signature) if item is None else item)
        # What is wrong with the item or the server is said by the server, and before the load.
        client.predict(item)
    request = _request(item, options.rows, signature)
    admin = _Admin(options)
    load = partial(Load, base_url(options.url), request, headers=shown(key), context=context)
    measured = asyncio.run(_measure(options, load, admin))
    knee = find(measured.steps)
    explained = admin.explained(sum(step.answered for step in measured.steps) * options.rows)
    sentences = advice(
        measured.steps,
        measured.within_ms,
        alone_ms=measured.alone_ms,
        max_batch_rows=signature.max_batch_size,
        bound=explained.bound if explained else None,
    )
    if options.plot:
        _draw(options.plot, measured.steps, _marked(knee), f"{signature.name} at {options.url}")
    show = _json if options.json else _text
    print(show(measured, knee, sentences, explained))
    return 0


async def _measure(options: argparse.Namespace, load: Callable[[float], Load], admin: "_Admin") -> Measured:
    """Measure; ``load`` makes the loads, by how long each request may take (s)."""
    ends_s, random = time.monotonic() + options.seconds, Random(options.seed)
    step_s = max(MIN_STEP_S, options.seconds / STEPS)
    alone = await _alone(load(options.timeout), step_s, random)
    alone_ms = percentile(alone, 0.5)
    within_ms = options.objective_ms or limit_ms(alone_ms, admin.objective_ms(len(alone) * options.rows))
    # Whoever is later than that is late in any case; a second is for what a busy machine takes.
    patience_s = min(options.timeout, max(1.0, 2 * within_ms / 1000))
    loader = load(patience_s)
    runs: dict[float, list[Run]] = {}
    steps: list[Step] = []
    try:
        while (rate := next_rate(steps, alone_ms)) is not None:
            seconds = run_s(rate, step_s=step_s, whole_s=options.seconds)
            if runs and time.monotonic() + seconds > ends_s:
                break
            print(f"{rate:.4g} requests/s for {seconds:.3g} s", file=sys.stderr)
            runs.setdefault(rate, []).append(await loader.at(rate, seconds, random))
            steps = [summarize(rate, of_rate, within_ms) for rate, of_rate in runs.items()]
        return Measured(alone_ms, within_ms, steps)
    finally:
        loader.close()


async def _alone(loader: Load, seconds: float, random: Random) -> list[float]:
    """Return what requests alone take, in milliseconds and in order of that."""
    try:
        alone = await loader.alone(ALONE_REQUESTS, seconds, random)
    finally:
        loader.close()
    good = sorted(each.latency_ms for each in alone if each.status == 200)
    if not good:
        status = alone[-1].status
        told = f"status {status}" if status else "no answer in time"
        raise ServerFailed(f"the sample was not answered ({told}): try it with `shoal predict`", status=status or None)
    return good


def _marked(knee: Knee) -> Step | None:
    """Return the step that is named as the knee, if it is one figure."""
    return knee.held if knee.found else None


def _request(item: Any, rows: int, signature: Signature) -> Request:
    if rows > 1 and not signature.batches:
        raise InvalidInput(f"model {signature.name} takes no batches: leave --rows out")
    tensors = many_items([item] * rows, signature) if signature.batches else one_item(item, signature)
    return infer_request(signature.name, signature, tensors, {})


class Concluded(msgspec.Struct):
    """Of the server's report on itself what is repeated here."""

    bound: Bound
    objective_ms: float | None = None


class Explained(msgspec.Struct):
    """What ``/v1/explain`` answers."""

    sentences: list[str]
    report: Concluded

    @property
    def bound(self) -> Bound:
        """What the server concludes is its bound."""
        return self.report.bound


class _Admin:
    """The server's admin port, if it can be reached and is this server's: its rows grew by what was sent."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._url = options.admin or f"http://{base_url(options.url).host}:{ADMIN_PORT}"
        self._rows = self._rows_served()

    def explained(self, rows: int) -> Explained | None:
        """Return what ``/v1/explain`` says, nothing if it is not of the server that answered ``rows``."""
        before, after = self._rows, self._rows_served()
        if before is None or after is None or after - before < rows:
            return None
        try:
            return msgspec.json.decode(self._get("/v1/explain", accept="application/json") or "", type=Explained)
        except msgspec.DecodeError:
            return None

    def objective_ms(self, rows: int) -> float | None:
        """Return within what time the server that has answered ``rows`` means to answer, if it says so."""
        explained = self.explained(rows)
        return explained.report.objective_ms if explained else None

    def _rows_served(self) -> float | None:
        for line in (self._get("/metrics") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == ROWS.name:
                return float(value)
        return None

    def _get(self, path: str, *, accept: str = "*/*") -> str | None:
        url = f"{base_url(self._url)}".rstrip("/") + path
        try:
            answer = httpx.get(url, headers={"accept": accept}, timeout=2.0)
        except httpx.HTTPError:
            return None
        return answer.text if answer.status_code == 200 else None


def _text(measured: Measured, knee: Knee, sentences: list[str], explained: Explained | None) -> str:
    steps, marked = measured.steps, _marked(knee)
    parts = [
        f"one request alone: {measured.alone_ms:.3g} ms (the median, as a caller sees it)",
        f"{steps_table(steps, marked)}\n{legend(measured.within_ms)}",
        bars(steps, marked),
        "\n".join(sentences),
    ]
    if explained:
        said = "the server itself says (/v1/explain), of its own time, without the way to it:"
        parts.append("\n".join([said, *explained.sentences]))
    return "\n\n".join(parts)


def _json(measured: Measured, knee: Knee, sentences: list[str], explained: Explained | None) -> str:
    marked = _marked(knee)
    document = {
        "alone_ms": measured.alone_ms,
        "limit_ms": measured.within_ms,
        "steps": [
            {**asdict(step), "verdict": judge(step), "generator_bound": step.generator_bound, "knee": step is marked}
            for step in by_rate(measured.steps)
        ],
        "knee_per_s": marked.offered_per_s if marked else None,
        "held_per_s": knee.held.offered_per_s if knee.held else None,
        "bent_per_s": knee.bent.offered_per_s if knee.bent else None,
        "advice": sentences,
        "bound": explained.bound if explained else None,
        "explain": explained.sentences if explained else [],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _check_picture(file: Path | None) -> None:
    """Raise before a run of half a minute what would only be known after it."""
    if file is None:
        return
    if file.suffix.lower() not in _PICTURES:
        raise InvalidInput(f"--plot writes {' or '.join(_PICTURES)}, not {file.name}")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {file.absolute().parent} for --plot")
    if file.suffix.lower() == ".png":
        try:
            import matplotlib  # noqa: F401, PLC0415 (optional)
        except ImportError as error:
            raise InvalidInput("a .png needs matplotlib: pip install matplotlib, or give a .svg") from error


def _draw(file: Path, steps: list[Step], held: Step | None, title: str) -> None:
    if file.suffix.lower() == ".svg":
        file.write_text(svg(steps, held, title))
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional)

    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    ordered = by_rate(steps)
    names = [f"{step.offered_per_s:.3g}{' (knee)' if step is held else ''}" for step in ordered]
    bottoms = [0.0] * len(ordered)
    for part in PARTS:
        heights = [step.parts_ms.get(part, 0.0 if step.parts_ms or part != "rest" else step.p50_ms) for step in ordered]
        axes.bar(names, heights, bottom=bottoms, color=COLOURS[part], label=part)
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axes.set(title=title, xlabel="requests/s offered", ylabel="mean latency, ms")
    axes.legend()
    figure.savefig(file)
