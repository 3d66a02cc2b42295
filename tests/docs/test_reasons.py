"""Each condition, reason and alert has a row in the reference and a section in a runbook, and no other has."""

import re
from pathlib import Path

import pytest
import yaml

from shoal_schema.publishing.reasons import CONDITIONS, REASONS
from shoal_schema.resource.conditions import FAILURES, BatchConditionType, ConditionType, Reason

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs/how-to/reasons.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference/fields.md").read_text(encoding="utf-8")
RULES = yaml.safe_load((ROOT / "charts/shoal/files/prometheus/rules.yaml").read_text(encoding="utf-8"))
SECTIONS = dict(re.findall(r"^### (\S+)\n\n(.*?)(?=\n##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
PARTS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=\n## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
LINK = re.compile(r"\]\((?P<page>[\w./-]*\.md)?#(?P<anchor>[\w-]+)\)")


def anchors_of(page: str) -> set[str]:
    """Return the anchors of the headings of a page beside the runbook, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/how-to" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_reason_has_a_section_in_the_runbook_and_each_section_a_reason() -> None:
    assert set(SECTIONS) == {str(reason) for reason in Reason}
    assert RUNBOOK.count("\n### ") == len(SECTIONS)


@pytest.mark.parametrize("reason", Reason)
def test_a_section_says_what_to_do_in_a_few_sentences(reason: Reason) -> None:
    text = SECTIONS[reason].strip()

    assert 3 <= len(text.split()) <= 110
    assert text.endswith((".", ")."))


def test_reasons_that_require_action_are_in_one_section() -> None:
    last = set(re.findall(r"^### (\S+)$", PARTS["Action required"], re.MULTILINE))

    assert last - FAILURES == {Reason.PARKED}
    assert {Reason(name) for name in last} >= FAILURES


def test_each_reason_and_condition_has_one_row_in_the_reference() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(\.\./how-to/reasons\.md#(\w+)\) \|", REFERENCE, re.MULTILINE)

    assert rows == [(str(reason), reason.lower()) for reason in Reason]
    assert set(REASONS) == set(Reason)
    assert set(CONDITIONS) == {*ConditionType, *BatchConditionType}
    assert all(REFERENCE.count(f"| `{kind}` | {text} |") == 1 for kind, text in CONDITIONS.items())


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_is_one_that_a_component_gives(reason: Reason) -> None:
    folders = ("operator/shoal_operator", "schema/shoal_schema/graphs", "schema/shoal_schema/interfaces/load.py")
    files = [path for each in folders for path in ((ROOT / each).rglob("*.py") if "." not in each else [ROOT / each])]
    given = re.compile(rf'\bReason\.{reason.name}\b|= "{reason}"')

    assert any(given.search(path.read_text(encoding="utf-8")) for path in files)


def test_links_of_the_runbook_lead_somewhere() -> None:
    for found in LINK.finditer(RUNBOOK):
        assert found["anchor"] in anchors_of(found["page"] or "reasons.md"), found[0]


def test_each_section_about_an_alert_has_its_alert() -> None:
    alerts = {rule["alert"] for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
    sections = re.findall(
        r"^## (Shoal\w+)$", (ROOT / "docs/how-to/respond-to-alerts.md").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert sorted(sections) == sorted(alerts)


def test_alerts_name_reasons_that_exist() -> None:
    text = yaml.safe_dump([rule["expr"] for group in RULES["groups"] for rule in group["rules"]], width=10_000)
    conditions = re.findall(r'service_condition\{[^}]*?reason[=!]~?"([^"]+)"', text)
    named = {name for each in conditions for name in each.split("|")}

    assert len(named) > 3
    assert named <= {str(reason) for reason in Reason}
