"""Command ``shoal simulate``: simulate a trace with other settings."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click import IntRange, argument, option

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.commands.admin_client import AdminRequestError, InvalidAddressError, fetch_text
from shoal_proxy.simulator.arrivals import gamma, on_off, poisson
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.latencies import Latencies, LatencyError, parse_document, parse_terms
from shoal_proxy.simulator.report import BOUNDS, lines, per_s
from shoal_proxy.simulator.study import SimulatedService, study
from shoal_proxy.simulator.trace import TraceEntry, TraceError, read_trace
from shoal_schema.process.arguments import NOT_NEGATIVE, PATH, POSITIVE, SHARE, Command, Words, exactly_one, only
from shoal_schema.resource.traffic import BatchingPolicy

# click leaves the lines after \b as they are.
EXAMPLES = """\
\b
examples:
  shoal simulate --poisson 600 --latency 5ms+1ms --objective-ms 50 --max-batch-size 32
  shoal simulate --gamma 600,4 --latency table.json --objective-ms 50 --replicas 2
  shoal simulate --on-off 100,900,5 --from http://127.0.0.1:8079
  shoal simulate --gamma 5000,4 --latency 20ms+0.5ms --replicas 8 --balance RequestForwarding --slow 1.5
  shoal record --from http://127.0.0.1:8079 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:8079 --objective-ms 30 --speed 2

\b
A trace is CSV with the columns arrived_s,rows,shape,deadline_ms; only the first is required. A latency table is the
response of a proxy's /v1/latency, or JSON of rows to seconds, each size at most twice the one before:
{"1": 0.004, "2": 0.0042, "4": 0.0045, "8": 0.005, "16": 0.006, "32": 0.009}
The scheduler is the proxy's own code; device, network and clients are simulated.
"""


KEPT = "Pinned or RequestForwarding"
"""Balances that keep connections."""
REMEDY = (
    "Send it more requests at the same time, simulate with a smaller --max-batch-size, or guess the other times with"
    " --extrapolate."
)


class UnreadableError(Exception):
    """A file that the command line names cannot be read."""


class NotMeasuredError(Exception):
    """The proxy has not measured a duration that the simulation needs."""


WRONG_ARGUMENTS = (InvalidAddressError, LatencyError, TraceError, UnreadableError)
FAILED = (AdminRequestError, NotMeasuredError)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a progress text on one terminal line."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(what: str) -> None:
        print(f"\r\x1b[Ksimulating {what}", end="", file=sys.stderr, flush=True)  # noqa: T201

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201


def _guesses(entries: Sequence[TraceEntry], service: SimulatedService) -> str:
    """Describe the execution times that the simulation must guess.

    These are the times of batch sizes and input shapes that the proxy has not measured.
    """
    # Per shape, batches that the simulation may form and whose time is unknown.
    latencies, most = service.latencies, service.limits.max_rows
    shapes = sorted({entry.shape for entry in entries})
    sizes = {f" of shape {shape}" if shape and len(latencies.shapes) > 1 else "": shape for shape in shapes}
    unmeasured = [f"{guess}{name}" for name, shape in sizes.items() if (guess := latencies.sizes(shape).guesses(most))]
    # Shapes of the trace that the proxy has not seen.
    strange = [shape for shape in shapes if shape and shape not in latencies.shapes and any(latencies.shapes)]
    if strange:
        unmeasured.append(f"inputs of shape {', '.join(strange)}")
    return "; ".join(unmeasured)


def _latencies(options: SimpleNamespace) -> Latencies:
    if options.source:
        # Errors in the proxy's response are not the user's.
        try:
            return parse_document(_json(fetch_text(options.source, "/v1/latency"), f"{options.source}/v1/latency"))
        except LatencyError as error:
            raise NotMeasuredError(str(error)) from None
    path = Path(options.latency)
    # Everything else is a formula.
    if path.suffix == ".json" or path.exists():
        return parse_document(_json(_read(path), str(path)))
    return parse_terms(options.latency)


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise LatencyError(f"{where} is not JSON: {error}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _entries(options: SimpleNamespace) -> list[TraceEntry]:
    if options.trace == "-":
        entries = read_trace(sys.stdin)
    elif options.trace:
        try:
            entries = read_trace(_read(Path(options.trace)).splitlines())
        except TraceError as error:
            raise TraceError(f"{options.trace}: {error}") from None
    else:
        if options.poisson:
            times = poisson(options.poisson, options.requests, seed=options.seed)
        elif options.gamma:
            times = gamma(options.gamma[0], options.requests, cv=options.gamma[1], seed=options.seed)
        else:
            low, high, period_s = options.on_off
            times = on_off(low, high, options.requests, quiet_s=period_s, busy_s=period_s, seed=options.seed)
        entries = [TraceEntry(time) for time in times.tolist()]
    return [
        TraceEntry(
            entry.arrived_s / options.speed,
            entry.rows,
            entry.shape,
            None if options.ignore_deadlines else entry.deadline_ms,
        )
        for entry in entries
    ]


def _service(options: SimpleNamespace, latencies: Latencies) -> SimulatedService:
    most = options.max_batch_size or latencies.max_batch_size or 32
    objective_s = options.objective_ms / 1000 if options.objective_ms else latencies.objective_s
    # Options first, then the running proxy's values, then defaults.
    limits = BatchLimits(most, options.max_delay_ms / 1000, policy=options.policy)
    queue_rows = options.max_queue_rows or max(1024, 4 * most)
    return SimulatedService(
        latencies,
        limits,
        objective_s,
        options.replicas,
        options.instances or latencies.in_flight,
        queue_rows,
        options.seed,
        timeout_s=(options.timeout_ms or NEVER_S) / 1000,
        failing=options.failing,
        identical=options.identical,
        balance=options.balance,
        connections=options.connections,
        slow=options.slow,
        death_s=options.pod_death or NEVER_S,
        start_s=options.start_seconds,
        stale_s=options.stale_ms / 1000,
    )


def _positive_numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    """Return the type of an option with ``count`` finite numbers above 0, separated by commas."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            values = tuple([float(part) for part in text.split(",")])
        except ValueError:
            values = ()
        if len(values) != count or not all(0 < value < NEVER_S for value in values):
            raise click.BadParameter(f"must be {count} positive numbers, comma-separated, not {text}")
        return values

    return parse


RULES = [
    exactly_one("trace", "poisson", "gamma", "on_off"),
    exactly_one("latency", "source"),
    only("requests", lambda given: given.trace is None, "a recorded trace has a fixed number"),
    only("ignore_deadlines", lambda given: given.trace is not None, "random arrivals have no deadlines"),
    only("extrapolate", lambda given: given.source is not None, "it needs --from"),
    only("max_delay_ms", lambda given: given.policy is BatchingPolicy.FIXED, "it needs --policy Fixed"),
    only("balance", lambda given: given.replicas > 1, "it needs --replicas 2 or more"),
    only("connections", lambda given: given.balance.keeps_connections, f"it needs --balance {KEPT}"),
    only("stale_ms", lambda given: given.balance is Balance.REQUEST_FORWARDING, "it needs --balance RequestForwarding"),
    only("start_seconds", lambda given: given.pod_death is not None, "it needs --pod-death"),
]


@click.command("simulate", cls=Command, rules=RULES, epilog=EXAMPLES)
@argument("trace", type=PATH, metavar="[TRACE.csv]", required=False, help="recorded arrivals; - is standard input")
@option("--poisson", type=POSITIVE, metavar="RATE", help="random arrivals, per second")
@option("--gamma", type=_positive_numbers(2), metavar="RATE,CV", help="bursty arrivals; CV 1 is Poisson, 4 is bursty")
@option("--on-off", type=_positive_numbers(3), metavar="LOW,HIGH,SECONDS", help="two alternating rates")
@option("--requests", type=IntRange(1), default=20_000, help="requests of a random trace; fewer are quicker")
@option("--seed", type=int, default=1, help="seed of all random numbers")
@option("--speed", type=POSITIVE, default=1.0, help="factor on the speed of the replay")
@option("--ignore-deadlines", is_flag=True, help="ignore deadlines in the trace shorter than the objective")
@option("--latency", type=PATH, metavar="TABLE", help="4ms+0.15ms (per batch, per row), or a JSON file")
@option("--from", "source", metavar="URL", help="admin port of a running proxy")
@option("--extrapolate", is_flag=True, help="with --from: guess times that were not measured")
@option("--objective-ms", type=POSITIVE, help="default: the running proxy's, otherwise none")
@option("--max-batch-size", type=IntRange(1), help="default: the running proxy's, otherwise 32")
@option("--max-queue-rows", type=IntRange(1), help="default: 1024, or four full batches if that is more")
@option("--policy", type=Words(BatchingPolicy), default=str(BatchingPolicy.ADAPTIVE), help="batching policy")
@option("--max-delay-ms", type=NOT_NEGATIVE, default=0.0, help="delay of policy Fixed")
@option("--replicas", type=IntRange(1), default=1, help="number of replicas")
@option("--instances", type=IntRange(1), help="processes per replica; default: the running proxy's, otherwise 1")
@option("--balance", type=Words(Balance), default=str(Balance.RANDOM), help="routing of requests to replicas")
@option("--connections", type=IntRange(1), default=4, help=f"client connections per replica, with --balance {KEPT}")
@option("--stale-ms", type=NOT_NEGATIVE, default=0.0, help="age of the queue times that RequestForwarding uses")
@option("--slow", type=POSITIVE, default=1.0, metavar="X", help="factor on one replica's batch times")
@option("--pod-death", type=POSITIVE, metavar="SECONDS", help="time at which a pod dies")
@option("--start-seconds", type=POSITIVE, default=30.0, help="start time of the replacement pod")
@option("--timeout-ms", type=POSITIVE, help="timeout of clients; default: none")
@option("--failing", type=SHARE, default=0.0, metavar="SHARE", help="share of requests that fail")
@option("--identical", type=SHARE, default=0.0, metavar="SHARE", help="share of identical requests")
@option("--json", is_flag=True, help="print JSON, times in seconds")
def command(**given: Any) -> int:
    """Simulate a trace with another objective, batch size or load. The simulation uses the proxy's scheduler."""
    options = SimpleNamespace(**given)
    try:
        latencies = _latencies(options)
        entries = _entries(options)
        service = _service(options, latencies)
        guesses = _guesses(entries, service)
        if guesses and options.source and not options.extrapolate:
            raise NotMeasuredError(f"{options.source} has not measured {guesses}. {REMEDY}")
    except (*WRONG_ARGUMENTS, *FAILED) as error:
        print(f"shoal: {error}", file=sys.stderr)  # noqa: T201
        # Wrong arguments have the exit status of the parser.
        return 2 if isinstance(error, WRONG_ARGUMENTS) else 1
    # Events after the last arrival would have no effect.
    lasts_s = entries[-1].arrived_s - entries[0].arrived_s
    if service.death_s < NEVER_S and service.death_s + service.start_s > lasts_s:
        late = "pod dies" if service.death_s > lasts_s else "replacement of the dead pod starts"
        print(f"shoal: the {late} after the last request: the trace lasts {lasts_s:.3g} s", file=sys.stderr)  # noqa: T201
    with _progress() as progress:
        result = study(entries, service, progress)
    if result.served_per_s is not None and result.beyond_served(result.outcome.offered_per_s):
        host = f"the host's work at more than {per_s(result.served_per_s)}, the highest measured rate"
        guesses = f"{guesses}; {host}" if guesses else host
    if guesses:
        warning = (
            f"shoal: guessed, because it was not measured: {guesses}. Results that depend on it may be inaccurate."
        )
        print(warning, file=sys.stderr)  # noqa: T201
    measured = options.source is not None
    document = {**asdict(result), "guessed": guesses or None, "bounds": BOUNDS if measured else None}
    text = "\n".join(lines(result, service, guesses, measured=measured))
    print(json.dumps(document, indent=1) if options.json else text)  # noqa: T201
    return 0
