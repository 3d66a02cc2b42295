"""``shoal bench``: raise the load on a server to its limit, and report the limit, its cause and the remedy."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import httpx
import msgspec
import orjson

from shoal.benching.advice import advice
from shoal.benching.drawing import COLOURS, bars, by_rate, legend, steps_table, svg
from shoal.benching.knee import MAX_RUNS, Knee, find, judge, next_rate, run_s
from shoal.benching.samples import sample
from shoal.benching.steps import PARTS, LoadStep, Run, limit_ms, percentile, summarize
from shoal.client import Client
from shoal.compilation import UNCOMPILED
from shoal.discovery import POD_ADMIN_PORT, admin_url, find_model
from shoal.errors import InvalidInput, ServerFailed
from shoal.exchange import base_url, trusted
from shoal.files import given_item, plain
from shoal.keys import key_in, shown
from shoal.loading import Load
from shoal.wire.items import encode_item, encode_items
from shoal.wire.messages import infer_request
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.interfaces.bounds import Bound
from shoal_schema.interfaces.metrics import ROWS

STEPS = 10
"""Steps that share the time; a step with too few requests takes longer."""
MIN_STEP_S = 0.5
ALONE_REQUESTS = 20
"""Requests that measure the latency of an idle server."""
_PICTURES = (".svg", ".png")
# matplotlib, which .png needs, is optional: it is imported late.


@dataclass(frozen=True, slots=True)
class Measurement:
    """All measurements of one ``shoal bench`` run."""

    alone_ms: float
    """Median latency of a request on an idle server."""
    within_ms: float
    """Latency up to which a response is in time."""
    steps: list[LoadStep]
    """In the order of their first run."""


def bench(options: SimpleNamespace) -> int:
    """Measure a server under rising load, and print the report."""
    _check_plot(options.plot)
    if not options.url:
        options.url, options.model = find_model("bench", options.model)
    key, context = key_in(options.api_key_file), trusted(options)
    with Client(options.url, options.model, timeout_s=options.timeout, api_key=key, verify=context) as client:
        signature = client.signature()
        item = given_item(options, options.item)
        item = plain(sample(signature) if item is None else item)
        # One request before the load, so that the server reports a wrong item at once.
        client.predict(item)
    if options.rows > 1 and not signature.batches:
        raise InvalidInput(f"model {signature.name} takes no batches. Omit --rows")
    tensors = encode_items([item] * options.rows, signature) if signature.batches else encode_item(item, signature)
    request = infer_request(signature.name, signature, tensors, {})
    admin = _Admin(options, signature.name)
    load = partial(Load, base_url(options.url), request, headers=shown(key), context=context)
    measured = asyncio.run(_measure(options, load, admin))
    knee = find(measured.steps)
    marked = knee.held if knee.found else None
    explained = admin.explained(sum(step.answered for step in measured.steps) * options.rows)
    sentences = advice(
        measured.steps,
        measured.within_ms,
        alone_ms=measured.alone_ms,
        max_batch_rows=signature.max_batch_size,
        bound=explained.bound if explained else None,
    )
    if options.plot:
        _draw(options.plot, measured.steps, marked, f"{signature.name} at {redacted_value(options.url)}")
    if options.json:
        print(_json(measured, knee, sentences, explained))
        return 0
    parts = [
        f"single request: {measured.alone_ms:.3g} ms (median, measured by the client)",
        f"{steps_table(measured.steps, marked)}\n{legend(measured.within_ms)}",
        bars(measured.steps, marked),
        "\n".join(sentences),
    ]
    if explained:
        reported = explained.sentences if explained.compiled else [*explained.sentences, UNCOMPILED]
        parts.append("\n".join(["The server reports (/v1/explain, without the network):", *reported]))
    print("\n\n".join(parts))
    return 0


async def _measure(options: SimpleNamespace, load: Callable[[float], Load], admin: "_Admin") -> Measurement:
    """Measure the idle server, then the server at rising request rates.

    ``load`` makes a load generator; its argument is the timeout of each request (s).
    """
    ends_s, random = time.monotonic() + options.seconds, Random(options.seed)
    step_s = max(MIN_STEP_S, options.seconds / STEPS)
    # Latencies of requests sent one at a time (ms).
    loader = load(options.timeout)
    try:
        sampled = await loader.alone(ALONE_REQUESTS, step_s, random)
    finally:
        loader.close()
    alone = sorted(each.latency_ms for each in sampled if each.status == 200)
    if not alone:
        status = sampled[-1].status
        found = f"status {status}" if status else "no response in time"
        raise ServerFailed(f"the sample failed ({found}). Try it with `shoal predict`", status=status or None)
    alone_ms = percentile(alone, 0.5)
    within_ms = options.objective_ms or limit_ms(alone_ms, admin.objective_ms(len(alone) * options.rows))
    # Twice the limit is late in any case; at least 1 s, for a busy machine.
    loader = load(min(options.timeout, max(1.0, 2 * within_ms / 1000)))
    runs: dict[float, list[Run]] = {}
    steps: list[LoadStep] = []
    try:
        while (rate := next_rate(steps, alone_ms)) is not None:
            seconds = run_s(rate, step_s=step_s, whole_s=options.seconds)
            # The first rate is always measured, even beyond --seconds.
            if runs and time.monotonic() + seconds > ends_s:
                break
            number = len(runs.get(rate, ())) + 1
            print(f"run {number} of at most {MAX_RUNS} at {rate:.4g} requests/s, {seconds:.3g} s", file=sys.stderr)
            runs.setdefault(rate, []).append(await loader.at(rate, seconds, random))
            steps = [summarize(rate, of_rate, within_ms) for rate, of_rate in runs.items()]
        return Measurement(alone_ms, within_ms, steps)
    finally:
        loader.close()


class ProxyConclusion(msgspec.Struct):
    """Bottleneck and latency objective in a ``/v1/explain`` response."""

    bound: Bound
    objective_ms: float | None = None


class ProxyExplanation(msgspec.Struct):
    """The parts of a ``/v1/explain`` response that ``shoal bench`` uses."""

    sentences: list[str]
    report: ProxyConclusion
    compiled: bool = True
    """Whether the proxy's request path is compiled."""

    @property
    def bound(self) -> Bound:
        """The bottleneck that the server reports."""
        return self.report.bound


class _Admin:
    """Client of the server's admin port.

    Another server may listen on the default admin port, so the rows that it counts are compared with the rows sent.
    """

    def __init__(self, options: SimpleNamespace, model: str) -> None:
        url = base_url(options.url)
        pod = f"http://{url.host}:{POD_ADMIN_PORT}"
        self._url = options.admin or admin_url(f"{url}".replace("//localhost:", "//127.0.0.1:"), model) or pod
        self._rows = self._rows_served()

    def explained(self, rows: int) -> ProxyExplanation | None:
        """Return the server's response to ``/v1/explain``, or None.

        None means that the port is unreachable or another server's: the server counted fewer than ``rows`` rows since
        this client was created, or its response is not the expected document.
        """
        before, after = self._rows, self._rows_served()
        # Another server may listen on the default admin port.
        if before is None or after is None or after - before < rows:
            return None
        try:
            return msgspec.json.decode(self._get("/v1/explain", accept="application/json") or "", type=ProxyExplanation)
        except msgspec.DecodeError:
            return None

    def objective_ms(self, rows: int) -> float | None:
        """Return the server's latency objective (ms), or None without one.

        Also None if `explained` returns None for ``rows``.
        """
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
            response = httpx.get(url, headers={"accept": accept}, timeout=2.0)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None


def _json(measured: Measurement, knee: Knee, sentences: list[str], explained: ProxyExplanation | None) -> str:
    marked = knee.held if knee.found else None
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
        "compiled": explained.compiled if explained else None,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _check_plot(file: Path | None) -> None:
    """Check before the measurement that the plot can be written; raise InvalidInput otherwise."""
    if file is None:
        return
    if file.suffix.lower() not in _PICTURES:
        raise InvalidInput(f"--plot writes {' or '.join(_PICTURES)}, not {file.name}")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"--plot: there is no directory {file.absolute().parent}")
    if file.suffix.lower() == ".png":
        try:
            import matplotlib  # noqa: F401, PLC0415 (optional)
        except ImportError as error:
            raise InvalidInput(
                "--plot: a .png needs matplotlib. Run pip install matplotlib, or write a .svg"
            ) from error


def _draw(file: Path, steps: list[LoadStep], held: LoadStep | None, title: str) -> None:
    if file.suffix.lower() == ".svg":
        file.write_text(svg(steps, held, title))
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional)

    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    ordered = by_rate(steps)
    names = [f"{step.offered_per_s:.3g}{' (knee)' if step is held else ''}" for step in ordered]
    # Stacked bars: each part starts at the sum of the parts below.
    bottoms = [0.0] * len(ordered)
    for part in PARTS:
        heights = [step.parts_ms.get(part, 0.0 if step.parts_ms or part != "rest" else step.p50_ms) for step in ordered]
        axes.bar(names, heights, bottom=bottoms, color=COLOURS[part], label=part)
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axes.set(title=title, xlabel="requests/s offered", ylabel="mean latency, ms")
    axes.legend()
    figure.savefig(file)
