"""The alerts, as promtool evaluates them: each fires where it should, is silent where not, and has a runbook."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from shoal_schema.interfaces.metrics import ALL, ALL_OF_OPERATOR
from tests.prometheus import promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts/shoal/files/prometheus/rules.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
OF = 'namespace="default",service="cat"'
HOURS = 400
"""Minutes of a series: longer than the longest window and its wait."""


def grows(name: str, each_minute: float, labels: str = "") -> dict[str, str]:
    """Return a counter of the service."""
    return {"series": f"{name}{{{OF}{labels}}}", "values": f"0+{each_minute}x{HOURS}"}


def stays(name: str, value: float, labels: str = "") -> dict[str, str]:
    """Return a gauge of the service."""
    return {"series": f"{name}{{{OF}{labels}}}", "values": f"{value}+0x{HOURS}"}


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    labels = f',condition="{kind}",status="{status}",reason="{reason}"'
    return stays("shoal_operator_service_condition", 1, labels)


LEADS, STANDS_BY = ({"series": "shoal_operator_leader", "values": f"{n}+0x{HOURS}"} for n in (1, 0))


def behind(what: str, seconds: float) -> dict[str, str]:
    """Return for how long the operator has not come to something."""
    return {"series": f"shoal_operator_{what}_age_seconds", "values": f"{seconds}+0x{HOURS}"}


def upgrades(failed: int) -> list[dict[str, str]]:
    counts = {"pending": 3, "running": 1, "failed": failed}
    return [
        {"series": f'shoal_operator_upgrades{{state="{name}"}}', "values": f"{n}+0x{HOURS}"}
        for name, n in counts.items()
    ]


ANSWERS = grows("shoal_proxy_requests_total", 1000, ',protocol="v2",status="200"')
ROWS = grows("shoal_proxy_rows_total", 1000)
ELEMENTS = grows("shoal_proxy_elements_total", 1000)


class Case(NamedTuple):
    """What is measured, and what of it is said."""

    alert: str
    firing: list[dict[str, str]]
    silent: list[dict[str, str]]
    labels: dict[str, str]


SERVICE = {"namespace": "default", "service": "cat"}
CASES = [
    Case(
        "ShoalObjectiveBurnsFast",
        [ANSWERS, grows("shoal_proxy_late_answers_total", 200)],
        [ANSWERS, grows("shoal_proxy_late_answers_total", 100)],
        SERVICE,
    ),
    Case(
        "ShoalObjectiveBurns",
        [ANSWERS, grows("shoal_proxy_requests_total", 80, ',protocol="v2",status="500"')],
        [ANSWERS, grows("shoal_proxy_requests_total", 30, ',protocol="v2",status="500"')],
        SERVICE,
    ),
    Case(
        "ShoalRefusals",
        [ANSWERS, grows("shoal_proxy_rejections_total", 50, ',reason="queue_rows"')],
        [
            ANSWERS,
            grows("shoal_proxy_rejections_total", 5, ',reason="queue_rows"'),
            grows("shoal_proxy_rejections_total", 500, ',reason="invalid"'),
        ],
        {**SERVICE, "reason": "queue_rows"},
    ),
    Case(
        "ShoalModelFailsRows",
        [ROWS, grows("shoal_proxy_failed_rows_total", 20)],
        [ROWS, grows("shoal_proxy_failed_rows_total", 5)],
        SERVICE,
    ),
    Case(
        "ShoalRowsMixed",
        [stays("shoal_proxy_rows_independent", 0)],
        [stays("shoal_proxy_rows_independent", 1)],
        SERVICE,
    ),
    Case(
        "ShoalRuntimeCrashLoop",
        [grows("shoal_proxy_runtime_losses_total", 0.5)],
        [grows("shoal_proxy_runtime_losses_total", 0.1), condition("Ready", "True", "Ready")],
        SERVICE,
    ),
    Case(
        "ShoalRuntimeCrashLoop",
        [condition("ModelLoaded", "False", "RuntimeCrashed")],
        [condition("ModelLoaded", "Unknown", "ModelLoading")],
        SERVICE,
    ),
    Case(
        "ShoalLoadFailed",
        [condition("ModelLoaded", "False", "ModelDownloadFailed"), condition("Ready", "False", "ModelDownloadFailed")],
        [condition("ModelLoaded", "Unknown", "ModelDownloading")],
        {**SERVICE, "reason": "ModelDownloadFailed"},
    ),
    Case(
        "ShoalPaddingWaste",
        [ELEMENTS, grows("shoal_proxy_padded_elements_total", 400)],
        [ELEMENTS, grows("shoal_proxy_padded_elements_total", 200)],
        SERVICE,
    ),
    Case(
        "ShoalScalingLimited",
        [condition("ScalingLimited", "True", "AtMaxReplicas")],
        [condition("ScalingActive", "True", "FollowingLoad")],
        {**SERVICE, "reason": "AtMaxReplicas"},
    ),
    Case(
        "ShoalNoData",
        [stays("shoal_operator_service_replicas_ready", 2)],
        [stays("shoal_operator_service_replicas_ready", 2), stays("shoal_proxy_queue_rows", 0, ',pod="cat-1"')],
        SERVICE,
    ),
    Case(
        "ShoalNoData",
        [stays("shoal_operator_service_replicas_ready", 2)],
        [stays("shoal_operator_service_replicas_ready", 0)],
        SERVICE,
    ),
    Case(
        "ShoalNotReady",
        [condition("Ready", "False", "NotAllowed")],
        [condition("Ready", "False", "Parked"), condition("Ready", "Unknown", "RollingOut")],
        {**SERVICE, "reason": "NotAllowed"},
    ),
    # Services of which none scales: none is read.
    Case("ShoalOperatorStale", [], [LEADS, behind("queue", 0), behind("scrape", 0)], {}),
    Case("ShoalOperatorStale", [STANDS_BY], [LEADS], {}),
    Case("ShoalOperatorStale", [LEADS, behind("queue", 400)], [LEADS, behind("queue", 200)], {}),
    Case("ShoalOperatorStale", [LEADS, behind("scrape", 70)], [LEADS, behind("scrape", 50)], {}),
    Case("ShoalUpgradeFailed", upgrades(2), upgrades(0), {}),
]


def names_of(case: Case) -> str:
    return f"{case.alert}-{CASES.index(case)}"


@pytest.mark.parametrize("case", CASES, ids=names_of)
def test_an_alert_fires_when_it_should_and_is_silent_when_not(case: Case, tmp_path: Path) -> None:
    said = {"exp_labels": {**case.labels, **ALERTS[case.alert]["labels"]}}

    def evaluated(series: list[dict[str, str]], alerts: list[dict[str, dict[str, str]]]) -> dict[str, object]:
        at = {"eval_time": "390m", "alertname": case.alert, "exp_alerts": alerts}
        return {"interval": "1m", "input_series": series, "alert_rule_test": [at]}

    rule_test = {
        "rule_files": [str(tmp_path / "rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [evaluated(case.firing, [said]), evaluated(case.silent, [])],
    }
    # What is said is for the other test: here it would have to be repeated with its figures.
    bare = re.sub(r"\n +annotations:\n(?: {10}.*\n)+", "\n", RULES.read_text())
    (tmp_path / "rules.yaml").write_text(bare)
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(rule_test))

    done = promtool("test", "rules", "test.yaml", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == set(ALERTS)


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = promtool("check", "rules", str(RULES), folder=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_ask_only_for_what_the_schema_declares() -> None:
    declared = {metric.name for metric in (*ALL, *ALL_OF_OPERATOR)}
    asked = {name for group in GROUPS for rule in group["rules"] for name in re.findall(r"\bshoal_\w+", rule["expr"])}

    assert asked <= declared


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_to_do_and_leads_to_its_part_of_the_runbook(alert: str) -> None:
    annotations = ALERTS[alert]["annotations"]
    page, _, anchor = annotations["runbook_url"].partition("#")

    assert annotations["summary"]
    assert annotations["description"]
    headings = re.findall(r"^###? (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
