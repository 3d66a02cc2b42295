"""A real Prometheus finds and reads proxies, operator and activator, and answers what dashboards and alerts ask."""

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually
from monitoring.pictures import Answer, draw
from monitoring.queries import Question, questions
from tests.monitoring.scraping import discovered, scrape_config
from tests.operator.chart.test_monitoring import monitors
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
RULES = ROOT / "charts/shoal/files/prometheus/rules.yaml"
STEP_S = 1
RATE_S = 10
DISCOVERY_S = 3
LOADS = ((3, 15.0), (40, 40.0), (3, 15.0))
"""Callers at once, and for how long."""
GRAPH = {
    "apiVersion": "serving.shoal.dev/v1alpha1",
    "kind": "InferenceGraph",
    "metadata": {"name": "through"},
    "spec": {
        "steps": [{"name": "sum", "service": "uneven", "inputs": {"x": "request.x"}}],
        "outputs": {"sum": ["sum.y"]},
    },
}


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get_json(self, path: str, **asked: Any) -> Any:
        """Return the data of an answer."""
        answer = httpx.get(self._url + path, params=asked, timeout=20, trust_env=False)
        assert answer.status_code == 200, f"{asked}: {answer.text}"
        return answer.json()["data"]

    def up(self) -> set[str]:
        """Return the jobs of which every target is read."""
        try:
            found = self.get_json("targets")["activeTargets"]
        except httpx.TransportError:
            return set()
        jobs = {target["labels"]["job"] for target in found}
        return jobs - {target["labels"]["job"] for target in found if target["health"] != "up"}

    def query_range(self, question: Question, begun_s: float, ended_s: float) -> Answer:
        """Return the series of a panel's query, as Grafana would ask for them."""
        if question.panel["targets"][0].get("instant"):
            found = self.get_json("query", query=question.expr, time=ended_s)["result"]
            return [(series["metric"], [series["value"]]) for series in found]
        asked = {"query": question.expr, "start": begun_s, "end": ended_s, "step": STEP_S}
        return [(series["metric"], series["values"]) for series in self.get_json("query_range", **asked)["result"]]


@contextmanager
def discovering(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Keep Prometheus's list of pods current until the block ends."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(DISCOVERY_S):
            pods = json.loads(cluster.kubectl("get", "pods", "--all-namespaces", "--output", "json").stdout)["items"]
            (folder / "new.json").write_text(json.dumps(discovered(pods)))
            (folder / "new.json").rename(folder / "targets.json")

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            stop.set()
    looking.result()


@contextmanager
def running(program: Path, cluster: Cluster, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the chart's PodMonitors and rules until the block ends."""
    port = free_port()
    config = {
        "global": {"scrape_interval": f"{STEP_S}s", "scrape_timeout": f"{STEP_S}s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [scrape_config(each, folder / "targets.json", f"{STEP_S}s") for each in monitors(folder)],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    options = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command = [str(program), *options, f"--web.listen-address=127.0.0.1:{port}"]
    with (
        discovering(cluster, folder),
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def calling(urls: Sequence[str], background_clients: int) -> Iterator[None]:
    """Send rows of several lengths, some of which fail, to each URL in turn until the block ends."""
    stop, lengths = threading.Event(), itertools.cycle([3, 7, 8, 9, 40])

    def call(number: int) -> None:
        with httpx.Client(timeout=20, trust_env=False) as client:
            while not stop.wait(0.02):
                row = [-1.0 if number == 0 else 1.0] * next(lengths)
                client.post(urls[number % len(urls)], json={"instances": [row]})

    with ThreadPoolExecutor(background_clients) as pool:
        calls = [pool.submit(call, number) for number in range(background_clients)]
        try:
            yield
        finally:
            stop.set()
    for done in calls:
        done.result()


def served(cluster: Cluster) -> list[str]:
    """Apply a service that answers, refuses, pads, fails rows and scales, a graph of it, and one that never loads."""
    cluster.apply(
        "uneven",
        model={"uri": "file:///models/uneven"},
        batching={"maxBatchSize": 8, "latencyObjectiveMilliseconds": 250},
        scaling={"minReplicas": 1, "maxReplicas": 3},
    )
    cluster.apply("broken", model={"uri": "file:///models/broken"})
    rollout = {
        "strategy": "Canary",
        "steps": [{"shadow": 50, "weight": 25, "rows": 100_000_000}],
        "drainDelaySeconds": 0,
    }
    compared = {"uri": "file:///models/drifting", "parameters": {"columns": 8}}
    cluster.apply("drifting", model=compared, rollout=rollout)
    cluster.until_ready("uneven")
    cluster.until_ready("drifting")
    compared["parameters"] = {"columns": 8, "version": 2}
    cluster.apply("drifting", model=compared, rollout=rollout)
    eventually(lambda: cluster.condition("drifting", "CandidateJudged").get("reason") == "Comparing", within_s=120)
    cluster.kubectl("apply", "--filename", "-", text=yaml.safe_dump(GRAPH))
    cluster.kubectl("wait", "--for=condition=Ready", "infgraph/through", "--timeout=60s")
    return [f"{cluster.address(name)}/v1/models/{name}:predict" for name in ("through", "uneven", "drifting")]


def total(series: Answer) -> float:
    return sum(float(value) for _, values in series for _, value in values if value != "NaN")


def value_of(answers: Sequence[tuple[Question, Answer]], title: str) -> float:
    return sum(total(answer) for question, answer in answers if question.panel["title"] == title)


@pytest.mark.timeout(400)
def test_every_panel_has_data_of_services_that_answer_refuse_fail_and_scale(
    namespace: Cluster, prometheus: Path, tmp_path: Path
) -> None:
    with running(prometheus, namespace, tmp_path) as reading:
        urls = served(namespace)
        jobs = {f"shoal-system/shoal-{name}" for name in ("services", "operator", "activator")}
        eventually(lambda: reading.up() >= jobs, (tmp_path / "log").read_text, within_s=120)
        begun_s = _utc_s(reading)
        for background_clients, seconds in LOADS:
            until_s = _utc_s(reading) + seconds
            with calling(urls, background_clients):
                eventually(partial(_is_past, reading, until_s), within_s=seconds + 30)
        ended_s = _utc_s(reading)
        values = {
            "$namespace": namespace.namespace,
            "$service": "uneven|through|drifting",
            "$__rate_interval": f"{RATE_S}s",
            "$__range": f"{ended_s - begun_s:.0f}s",
            "$__range_s": f"{ended_s - begun_s:.0f}",
        }
        answers = [(each, reading.query_range(each, begun_s, ended_s)) for each in questions(ROOT, values)]
        rules = [rule for group in reading.get_json("rules")["groups"] for rule in group["rules"]]
        alerts = {
            (each["labels"]["alertname"], each["labels"]["service"]) for each in reading.get_json("alerts")["alerts"]
        }
        described = reading.get_json("metadata")

    # This machine has no GPU, so its memory is absent.
    assert {question.panel["title"] for question, answer in answers if not answer} == {"Device memory by pod"}
    for title in ("rejected/s by reason", "Failed rows and late responses", "Padding", "Replica-seconds", "batch size"):
        assert value_of(answers, title) > 0, title
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    assert {("ShoalRuntimeCrashLoop", "broken"), ("ShoalModelFailsRows", "uneven")} <= alerts
    assert all(meta[0]["help"] for name, meta in described.items() if name.startswith("shoal_"))
    if folder := os.environ.get("SHOAL_PICTURES"):
        for path in draw(answers, Path(folder)):
            assert path.stat().st_size > 10_000


def _is_past(reading: Prometheus, time_s: float) -> bool:
    return _utc_s(reading) >= time_s


def _utc_s(reading: Prometheus) -> float:
    """Return the time by Prometheus' clock."""
    return float(reading.get_json("query", query="time()")["result"][1])
