"""Where the seconds of a cold start go: ``make bench-coldstart``, or ``python -m benchmarks.coldstart [--times 10]``.

Runtime and proxy are started as a pod's containers are, the runtime first, with the operator's settings. From
there on the processes' own logs say when a step is over, and /proc what processor time it took: on a machine that
others use too, that is the figure to compare. Models take turns. What comes before (scheduling, pulling, containers)
is the cluster's, and in no figure here.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Thread

import httpx

from benchmarks.formats import CASES
from benchmarks.inputs import INPUTS
from benchmarks.processes import cpu_s
from benchmarks.report import slug
from benchmarks.surroundings import surroundings
from examples.server import free_ports

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MODELS = ("adder", "cat", "onnx", "skops")
LIMIT_S = 300.0
LAST_LINES_S = 0.2
"""Time for the thread that reads the log of a process that has ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is done when a process's log has this event, or this program has seen it.

    Args:
        who: the process that works on it.
        what: it is.
    """

    who: str
    event: str
    what: str

    @property
    def name(self) -> str:
        """Return its unique name."""
        return f"{self.who} {self.event}"


STEPS = (
    Step("shoal_runtime", "listening", "the runtime's own modules"),
    Step("shoal_runtime", "libraries_imported", "libraries"),
    Step("shoal_runtime", "model_loaded", "weights"),
    Step("shoal_runtime", "model_ready", "warm-up"),
    Step("shoal_proxy", "listening", "beside these: the proxy's own modules"),
    Step("shoal_proxy", "ready", "the proxy sees the runtime"),
    Step("shoal_runtime", "answered", "first answer"),
)


class StartFailedError(Exception):
    """A process ended before it was ready, or was not ready in time."""


@dataclass(slots=True)
class Timeline:
    """One start: by step, seconds since the first process was started, and processor seconds of its process so far."""

    begun_s: float = field(default_factory=time.monotonic)
    at_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    """Of the logs of all processes."""

    def mark(self, step: str, pid: int) -> None:
        """Note that a step is over, the first time."""
        if step not in self.at_s:
            self.at_s[step] = time.monotonic() - self.begun_s
            self.cpu_s[step] = cpu_s(pid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 when every start answered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=10, help="starts of each model")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    known = sorted({*CASES, *INPUTS, "adder"})
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--only names {', '.join(unknown)}; the models are {', '.join(known)}")
    here = surroundings()
    with tempfile.TemporaryDirectory() as folder:
        try:
            models = {name: model_of(name, Path(folder)) for name in names}
        except subprocess.CalledProcessError:
            print("coldstart: a model cannot be saved, as the output above shows. `make env` installs", file=sys.stderr)
            return 1
        starts: dict[str, list[Timeline]] = {name: [] for name in names}
        for _ in range(options.times):
            for name, model in models.items():
                try:
                    starts[name].append(start(model, request_of(name)))
                except (StartFailedError, httpx.HTTPError) as error:
                    print(f"coldstart: the model {name} did not start: {error}", file=sys.stderr)
                    return 1
    rows = {name: summary(timelines) for name, timelines in starts.items()}
    document = {"benchmark": "coldstart", **here, "times": options.times, "models": rows}
    path = RESULTS / f"coldstart-{slug(here['machine'])}-{here['date']}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return 0


def model_of(name: str, folder: Path) -> Path:
    """Return an example's folder, or save a format's model."""
    if name not in CASES:
        return ROOT / "examples" / name / "model"
    made = folder / name
    made.mkdir()
    # Its libraries stay out of this process.
    saving = "import sys; from pathlib import Path; from benchmarks.formats import CASES; CASES[{!r}].save(Path({!r}))"
    subprocess.run([sys.executable, "-c", saving.format(name, str(made))], check=True, cwd=ROOT)
    return made


def request_of(name: str) -> tuple[bytes, str]:
    """Return a first request's body and its type."""
    if name == "adder":
        return json.dumps({"instances": [[1.0] * 16]}).encode(), "application/json"
    inputs = INPUTS.get(name) or CASES[name].inputs
    return inputs.encode(inputs.items()[0]), inputs.content_type


def start(model: Path, request: tuple[bytes, str]) -> Timeline:
    """Start the pair, send one request as soon as the proxy is ready, and stop it."""
    port, admin_port = free_ports(2)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        socket = f"unix:{folder}/runtime.sock"
        timeline = Timeline()
        runtime = running.enter_context(
            process("shoal_runtime", timeline, SHOAL_MODEL_URI=str(model), SHOAL_RUNTIME_LISTEN=socket)
        )
        proxy = running.enter_context(
            process(
                "shoal_proxy",
                timeline,
                SHOAL_PROXY_RUNTIME=socket,
                SHOAL_PROXY_LISTEN=f"127.0.0.1:{port}",
                SHOAL_PROXY_ADMIN_LISTEN=f"127.0.0.1:{admin_port}",
            )
        )
        wait_until_ready(f"http://127.0.0.1:{admin_port}/readyz?wait_ms=2000", (runtime, proxy), timeline)
        timeline.mark("shoal_proxy ready", proxy.pid)
        body, content_type = request
        url = f"http://127.0.0.1:{port}/v1/models/model:predict"
        httpx.post(url, content=body, headers={"content-type": content_type}, trust_env=False).raise_for_status()
        timeline.mark("shoal_runtime answered", runtime.pid)
    return timeline


@contextlib.contextmanager
def process(module: str, timeline: Timeline, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of the pair, and note what its log says is over; it is stopped with the block."""
    # As in an image: with bytecode, and one model of a name that is known.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        [sys.executable, "-m", module],
        env={**environ, "SHOAL_MODEL_NAME": "model", **settings},
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        reader = Thread(target=follow, args=(module, started, timeline))
        reader.start()
        try:
            yield started
        finally:
            started.terminate()
            reader.join(LIMIT_S)


def follow(module: str, started: subprocess.Popen[str], timeline: Timeline) -> None:
    """Read a log to its end."""
    assert started.stderr is not None
    names = {step.name for step in STEPS}
    for line in started.stderr:
        timeline.last_lines.append(line)
        name = f"{module} {line.partition('event=')[2].partition(' ')[0]}"
        if name in names:
            timeline.mark(name, started.pid)


def wait_until_ready(
    url: str, processes: Sequence[subprocess.Popen[str]], timeline: Timeline, limit_s: float = LIMIT_S
) -> None:
    """Ask as a kubelet does, but at once again.

    Raises:
        StartFailedError: a process ended, or time is up.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and all(each.poll() is None for each in processes):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False, timeout=10).status_code == httpx.codes.OK:
                return
        time.sleep(0.01)
    ended = [f"status {each.returncode}" for each in processes if each.returncode is not None]
    why = f"a process ended with {ended[0]}" if ended else f"it was not ready within {limit_s:g} s"
    time.sleep(LAST_LINES_S)
    raise StartFailedError(
        f"{why}. Its last lines are below. Correct their cause, or leave the model out with --only\n"
        + "".join(timeline.last_lines)
    )


def summary(timelines: Sequence[Timeline]) -> dict[str, dict[str, float]]:
    """Return medians by step: the processor seconds of the step alone, and when it was over. Pure."""
    before_s = {step.who: 0.0 for step in STEPS}
    rows = {}
    for step in STEPS:
        until_s = median(each.cpu_s[step.name] for each in timelines)
        at_s = median(each.at_s[step.name] for each in timelines)
        rows[step.name] = {"cpu_s": round(until_s - before_s[step.who], 2), "at_s": round(at_s, 2)}
        before_s[step.who] = until_s
    return rows


def table(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the medians as a table of Markdown."""
    lines = ["| processor seconds, and when it is over | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    for step in STEPS:
        cells = [f"{each[step.name]['cpu_s']:.2f}, {each[step.name]['at_s']:.1f} s" for each in rows.values()]
        lines.append(f"| {step.what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
