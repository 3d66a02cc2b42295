"""Command ``shoal simulate``: simulate a trace with other settings."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.commands.admin_client import AdminRequestError, InvalidAddressError, fetch_text
from shoal_proxy.simulator.arrivals import gamma, on_off, poisson
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.latencies import Latencies, LatencyError, parse_document, parse_terms
from shoal_proxy.simulator.report import lines, per_s
from shoal_proxy.simulator.study import SimulatedService, study
from shoal_proxy.simulator.trace import TraceEntry, TraceError, read_trace
from shoal_schema.process.arguments import CommandParser, at_least, choice, integer, numbers, positive, share
from shoal_schema.resource.traffic import BatchingPolicy

EXAMPLES = """\
examples:
  shoal simulate --poisson 600 --latency 5ms+1ms --objective-ms 50 --max-batch-size 32
  shoal simulate --gamma 600,4 --latency table.json --objective-ms 50 --replicas 2
  shoal simulate --on-off 100,900,5 --from http://127.0.0.1:9090
  shoal simulate --gamma 5000,4 --latency 20ms+0.5ms --replicas 8 --balance RequestForwarding --slow 1.5
  shoal record --from http://127.0.0.1:9090 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30 --speed 2

A trace is CSV with the columns arrived_s,rows,shape,deadline_ms; only the first is required. A latency table is the
response of a proxy's /v1/latency, or JSON of rows to seconds, each size at most twice the one before:
{"1": 0.004, "2": 0.0042, "4": 0.0045, "8": 0.005, "16": 0.006, "32": 0.009}
The scheduler is the proxy's own code; device, network and clients are simulated.
"""


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


def run(options: argparse.Namespace) -> int:
    """Simulate the trace, print the result, and return the exit status."""
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
    document = {**asdict(result), "guessed": guesses or None}
    print(json.dumps(document, indent=1) if options.json else "\n".join(lines(result, service, guesses)))  # noqa: T201
    return 0


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
    """Describe the durations that are needed but were not measured."""
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


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``shoal simulate``."""
    made = CommandParser(
        "shoal simulate",
        description=(
            "Simulate a trace with another objective, batch size or load. The simulation uses the proxy's scheduler."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arrivals = made.add_mutually_exclusive_group(required=True)
    arrivals.add_argument("trace", nargs="?", metavar="TRACE.csv", help="recorded arrivals; - reads standard input")
    arrivals.add_argument("--poisson", type=positive(), metavar="RATE", help="random arrivals, per second")
    arrivals.add_argument(
        "--gamma", type=numbers(2), metavar="RATE,CV", help="bursty arrivals; a CV of 1 is Poisson, 4 is bursty"
    )
    arrivals.add_argument("--on-off", type=numbers(3), metavar="LOW,HIGH,SECONDS", help="two alternating rates")
    requests = made.add_argument(
        "--requests",
        type=integer(1),
        default=20_000,
        help="requests of a random trace (%(default)s); fewer are quicker",
    )
    made.add_argument("--seed", type=integer(), default=1, help="seed of all random numbers (%(default)s)")
    made.add_argument("--speed", type=positive(), default=1.0, help="factor on the speed of the replay (%(default)g)")
    ignore = made.add_argument(
        "--ignore-deadlines",
        action="store_true",
        help="ignore deadlines in the trace that are shorter than the objective",
    )
    made.only(requests, lambda given: given.trace is None, "a recorded trace has a fixed number")
    made.only(ignore, lambda given: given.trace is not None, "random arrivals have no deadlines")
    _add_service(made)
    _add_replicas(made)
    made.add_argument("--json", action="store_true", help="print JSON, times in seconds")
    return made


def _add_service(made: CommandParser) -> None:
    device = made.add_mutually_exclusive_group(required=True)
    device.add_argument("--latency", metavar="TABLE", help="4ms+0.15ms (per batch, per row), or a JSON file")
    device.add_argument("--from", dest="source", metavar="URL", help="admin port of a running proxy")
    guess = made.add_argument(
        "--extrapolate", action="store_true", help="with --from: guess times that were not measured"
    )
    made.add_argument("--objective-ms", type=positive(), help="default: the running proxy's, otherwise none")
    made.add_argument("--max-batch-size", type=integer(1), help="default: the running proxy's, otherwise 32")
    made.add_argument("--max-queue-rows", type=integer(1), help="default: 1024, or four full batches if that is more")
    made.add_argument(
        "--policy",
        type=choice(BatchingPolicy),
        choices=list(BatchingPolicy),
        default=BatchingPolicy.ADAPTIVE,
        help="batching policy (%(default)s)",
    )
    delay = made.add_argument(
        "--max-delay-ms", type=at_least(0), default=0.0, help="delay of policy Fixed (%(default)g)"
    )
    made.only(guess, lambda given: given.source is not None, "it needs --from")
    made.only(delay, lambda given: given.policy is BatchingPolicy.FIXED, "it needs --policy Fixed")


def _add_replicas(made: CommandParser) -> None:
    made.add_argument("--replicas", type=integer(1), default=1, help="number of replicas (%(default)s)")
    balance = made.add_argument(
        "--balance",
        type=choice(Balance),
        choices=list(Balance),
        default=Balance.RANDOM,
        help="routing of requests to replicas (%(default)s)",
    )
    connections = made.add_argument(
        "--connections",
        type=integer(1),
        default=4,
        help="client connections per replica, with --balance Pinned or RequestForwarding (%(default)s)",
    )
    stale = made.add_argument(
        "--stale-ms",
        type=at_least(0),
        default=0.0,
        help="age of the queue times that RequestForwarding uses (%(default)g)",
    )
    made.only(balance, lambda given: given.replicas > 1, "it needs --replicas 2 or more")
    made.only(
        connections, lambda given: given.balance.keeps_connections, "it needs --balance Pinned or RequestForwarding"
    )
    made.only(stale, lambda given: given.balance is Balance.REQUEST_FORWARDING, "it needs --balance RequestForwarding")
    made.add_argument(
        "--slow", type=positive(), default=1.0, metavar="X", help="factor on one replica's batch times (%(default)g)"
    )
    death = made.add_argument("--pod-death", type=positive(), metavar="SECONDS", help="time at which a pod dies")
    start = made.add_argument(
        "--start-seconds", type=positive(), default=30.0, help="start time of the replacement pod (%(default)g)"
    )
    made.add_argument("--timeout-ms", type=positive(), help="timeout of clients; default: none")
    made.add_argument(
        "--failing", type=share(), default=0.0, metavar="SHARE", help="share of requests that fail (%(default)g)"
    )
    made.add_argument(
        "--identical", type=share(), default=0.0, metavar="SHARE", help="share of identical requests (%(default)g)"
    )
    made.only(start, lambda given: given.pod_death is not None, f"it needs {death.option_strings[0]}")


def _latencies(options: argparse.Namespace) -> Latencies:
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


def _entries(options: argparse.Namespace) -> list[TraceEntry]:
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


def _service(options: argparse.Namespace, latencies: Latencies) -> SimulatedService:
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
