"""The dashboards' files: as the program writes them, in PromQL that Prometheus parses, over metrics that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml

from monitoring.__main__ import files
from monitoring.queries import questions
from shoal_schema.interfaces.metrics import ALL, ALL_OF_OPERATOR, MetricKind
from tests.prometheus import promtool

ROOT = Path(__file__).parents[2]
FILES = files()
VALUES = {"$namespace": ".*", "$service": "cat", "$__rate_interval": "1m", "$__range": "1h", "$__range_s": "3600"}
QUESTIONS = list(questions(ROOT, VALUES))
SUFFIXES = {MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"), MetricKind.GAUGE: ("",), MetricKind.COUNTER: ("",)}
LABELS = {"namespace", "service", "pod", "le"}
"""Of targets and of buckets; others are declared with their metric."""


@pytest.mark.parametrize("path", FILES)
def test_the_stored_dashboard_is_the_generated_one(path: str) -> None:
    assert (ROOT / path).read_text() == FILES[path], "run `make generated`"


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": question.expr} for number, question in enumerate(QUESTIONS)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    done = promtool("check", "rules", "queries.yaml", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUESTIONS)} rules found" in done.stdout


def test_queries_ask_only_for_metrics_and_labels_that_the_schema_declares() -> None:
    declared = {metric.name + suffix: metric for metric in (*ALL, *ALL_OF_OPERATOR) for suffix in SUFFIXES[metric.kind]}

    for question in QUESTIONS:
        for name, matchers in re.findall(r"\b(shoal_\w+)(?:\{([^}]*)\})?", question.expr):
            asked = set(re.findall(r"(\w+)[=!]~?", matchers))
            assert asked <= LABELS | declared[name].labels.keys(), question.expr


@pytest.mark.parametrize("path", FILES)
def test_every_panel_has_a_title_of_its_own_a_unit_and_says_what_to_do(path: str) -> None:
    panels = [panel for panel in json.loads(FILES[path])["panels"] if panel["type"] != "row"]

    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_namespace_and_service_can_be_chosen() -> None:
    chosen = {name: [v["name"] for v in json.loads(text)["templating"]["list"]] for name, text in FILES.items()}

    assert list(chosen.values()) == [["datasource", "namespace"], ["datasource", "namespace", "service"]]


def test_prometheus_takes_the_scrape_configuration_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/monitoring.md").read_text()
    (shown,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    config = yaml.safe_load(shown)
    for job in config["scrape_configs"]:
        # Debian's Prometheus is built without this discovery.
        assert [each["role"] for each in job.pop("kubernetes_sd_configs")] == ["pod"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))

    done = promtool("check", "config", "prometheus.yaml", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
