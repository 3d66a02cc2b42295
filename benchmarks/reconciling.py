"""How fast and how lean the operator is: `python -m benchmarks.reconciling`.

Starts the embedded API server and the operator as processes, and measures from outside:

- spec change to patched Deployment, seen by a watch, at 500 services (promise: p99 < 1 s), while the pods of all of
  them change their state as in a rollout;
- writes of a second operator that finds an unchanged world (promise: 0);
- resident memory at 1,000 services with a pod each (promise: < 120 MB).

No kubelet runs: the benchmark writes the states of pods. The API server shares the machine, and its own time is part of
every figure. Not named `operator`: a script in this folder would then import it in place
of the standard library's module.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from shoal_operator.cluster.api_server import MERGE, ApiServer
from shoal_operator.cluster.connection import connect, log_in
from shoal_operator.cluster.objects import object_path
from shoal_operator.errors import ApiError
from shoal_operator.manifests.labels import SERVICE_LABEL
from shoal_schema.process.environment import SettingsError
from shoal_schema.publishing.crd import custom_resource_definition
from shoal_schema.resource import API_VERSION, KIND, PLURAL

NAMESPACE = "default"
SERVICES = object_path(API_VERSION, PLURAL, NAMESPACE)
DEPLOYMENTS = object_path("apps/v1", "deployments", NAMESPACE)
# What the Kubernetes client loads where it is installed, and the operator's image has not.
ABSENT = "sys.modules['kubernetes_validate'] = None"
OPERATOR = f"import sys; {ABSENT}; from shoal_operator.__main__ import main; sys.exit(main())"
PATIENCE_S = 600.0


@dataclass(slots=True)
class Watched:
    """What a watch of the Deployments has seen: when each batch size appeared in each."""

    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, deployment: dict[str, Any]) -> None:
        """Note the batch size that a Deployment asks for."""
        containers = deployment["spec"]["template"]["spec"]["containers"]
        proxy = next(each for each in containers if each["name"] == "proxy")
        size = next(e["value"] for e in proxy["env"] if e["name"] == "SHOAL_BATCHING_MAX_BATCH_SIZE")
        self.seen.setdefault((deployment["metadata"]["name"], size), time.monotonic())
        self.changed.set()

    async def wait_for(self, name: str, size: str) -> float:
        """Return when a Deployment first asked for a batch size."""
        while (name, size) not in self.seen:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), PATIENCE_S)
        return self.seen[name, size]


async def main(options: argparse.Namespace) -> dict[str, float]:
    """Run all measurements and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KUBECONFIG"] = kubeconfig = f"{folder}/kubeconfig"
        server = (sys.executable, "-m", "shoal_local.apiserver", "--listen", options.listen)
        async with process(*server, "--kubeconfig", kubeconfig, log=f"{folder}/server.log"):
            api = ApiServer(connect)
            try:
                await installed(api)
                return await measured(api, options, folder)
            finally:
                await api.close()


async def measured(api: ApiServer, options: argparse.Namespace, folder: str) -> dict[str, float]:
    """Measure with an API server that is up."""
    figures: dict[str, float] = {}
    watched = Watched()
    watch = asyncio.create_task(watch_deployments(watched))
    command = (options.python, "-c", OPERATOR)
    async with process(*command, "--verbose", log=f"{folder}/first.log") as first:
        started_s = time.monotonic()
        await create(api, 0, options.services)
        await converged(watched, options.services)
        figures["services per second from nothing"] = options.services / (time.monotonic() - started_s)
        figures |= await change_latency(api, watched, options)
        await create(api, options.services, options.most)
        await converged(watched, options.most)
        await asyncio.sleep(5)
        figures["resident memory (MB)"], figures["peak resident memory (MB)"] = memory_mb(first.pid)
    async with process(*command, "--verbose", log=f"{folder}/second.log"):
        await asyncio.sleep(options.second_pass_s)
    watch.cancel()
    figures["reconciliations of the first operator"] = count_lines(f"{folder}/first.log", "event=reconciled ")
    figures["writes of the first operator"] = count_lines(f"{folder}/first.log", " write=")
    figures["reconciliations of a second pass"] = count_lines(f"{folder}/second.log", " outcome=done")
    figures["writes of a second pass"] = count_lines(f"{folder}/second.log", " write=")
    return figures


async def change_latency(api: ApiServer, watched: Watched, options: argparse.Namespace) -> dict[str, float]:
    """Change specs at a steady rate; return the time to the patched Deployment."""
    # Each service changes once: of two changes in a row, only the last is sure to be seen.
    numbers = random.Random(options.seed).sample(range(options.services), options.changes)

    async def change(number: int) -> float:
        name, size = f"cat-{number}", str(100 + number)
        sent_s = time.monotonic()
        patch = {"spec": {"batching": {"maxBatchSize": int(size)}}}
        await api.request("PATCH", f"{SERVICES}/{name}", patch, kind=MERGE)
        return await watched.wait_for(name, size) - sent_s

    rolling = asyncio.create_task(roll(api, options))
    tasks = []
    for number in numbers:
        tasks.append(asyncio.create_task(change(number)))
        await asyncio.sleep(1 / options.rate)
    times = sorted(await asyncio.gather(*tasks))
    rolling.cancel()
    return {
        "change to Deployment, p50 (ms)": 1000 * statistics.median(times),
        "change to Deployment, p99 (ms)": 1000 * times[min(len(times) - 1, int(len(times) * 0.99))],
    }


async def roll(api: ApiServer, options: argparse.Namespace) -> None:
    """Change the states of pods, one after the other, at a steady rate, until cancelled."""
    lanes = 8

    async def some(first: int) -> None:
        for number in itertools.count(first, lanes):
            ready = {"type": "Ready", "status": str(number // options.services % 2 == 0)}
            path = f"{object_path('v1', 'pods', NAMESPACE)}/cat-{number % options.services}/status"
            await api.request("PATCH", path, {"status": {"conditions": [ready]}}, kind=MERGE)
            await asyncio.sleep(lanes / options.pod_changes)

    if options.pod_changes:
        await asyncio.gather(*map(some, range(lanes)))


async def create(api: ApiServer, first: int, last: int) -> None:
    """Create services, each with one pod."""
    limit = asyncio.Semaphore(4)

    async def one(number: int) -> None:
        name = f"cat-{number}"
        spec = {"model": {"uri": f"file:///models/{name}"}}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        labels = {"app.kubernetes.io/managed-by": "shoal-operator", SERVICE_LABEL: name}
        pod_spec = {"containers": [{"name": "runtime", "image": "shoal/runtime:0"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": pod_spec}
        async with limit:
            await api.request("POST", SERVICES, body)
            await api.request("POST", object_path("v1", "pods", NAMESPACE), pod)

    await asyncio.gather(*(one(number) for number in range(first, last)))


async def converged(watched: Watched, count: int) -> None:
    """Wait until every service has its Deployment."""
    await asyncio.gather(*(watched.wait_for(f"cat-{number}", "32") for number in range(count)))


async def watch_deployments(watched: Watched) -> None:
    """Note every event of a Deployment, as a client with a watch sees it."""
    info = await log_in()
    connector = aiohttp.TCPConnector(ssl=info.as_ssl_context())
    forever = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, headers=info.as_http_headers(), timeout=forever) as session,
        session.get(info.server + DEPLOYMENTS, params={"watch": "true"}) as answer,
    ):
        async for line in answer.content:
            watched.note(json.loads(line)["object"])


@asynccontextmanager
async def process(*command: str, log: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command until the block ends."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    running = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    os.close(out)
    try:
        yield running
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(running.wait(), 30)
        except TimeoutError:
            running.kill()
            await running.wait()


async def installed(api: ApiServer) -> None:
    """Wait for the API server and create the definition."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for _ in range(100):
        try:
            await api.request("POST", path, custom_resource_definition())
        except (ApiError, SettingsError):  # not listening, or its kubeconfig not written yet
            await asyncio.sleep(0.1)
        else:
            return
    raise SystemExit("the API server did not start within 10 s")


def count_lines(path: str, words: str) -> int:
    """Return how many lines of a log hold these words."""
    return sum(words in line for line in Path(path).read_text().splitlines())


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process, now and at its peak (MB)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values["VmRSS"].split()[0]) / 1024, int(values["VmHWM"].split()[0]) / 1024


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=500, help="services while specs change")
    parser.add_argument("--most", type=int, default=1000, help="services while memory is measured")
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--rate", type=float, default=5.0, help="changes per second")
    parser.add_argument("--pod-changes", type=float, default=100.0, help="changes of pods per second meanwhile")
    parser.add_argument("--second-pass-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--python", default=sys.executable, help="the operator's; its image has no other packages than it needs"
    )
    parser.add_argument("--listen", default="127.0.0.1:26444")
    return parser.parse_args()


if __name__ == "__main__":
    for name, value in asyncio.run(main(parse())).items():
        print(f"{name:<42} {value:10.1f}")
