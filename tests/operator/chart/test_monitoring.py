"""Monitoring objects of the chart: off by default, and PodMonitors only with Prometheus' operator."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from helm_python import Chart, HelmError

from shoal_operator.manifests.labels import CANDIDATE_LABEL, SERVICE_LABEL
from shoal_schema.fields.declaring import Json
from tests.operator.chart.rendering import PATH, by_kind, rendered

LABELS = {"release": "prometheus"}
ON = {"monitoring": {name: {"enabled": True} for name in ("podMonitor", "rules", "dashboards")}}


def with_prometheus(folder: Path, **values: object) -> list[Json]:
    """Render for a cluster with Prometheus' operator, which the SDK cannot simulate."""
    shutil.copytree(PATH, folder / "chart")
    template = folder / "chart/templates/monitoring.yaml"
    gate = '.Capabilities.APIVersions.Has "monitoring.coreos.com/v1"'
    assert template.read_text().count(gate) == 1
    template.write_text(template.read_text().replace(gate, "true"))
    with Chart.load(folder / "chart") as chart:
        return rendered(chart, **values)


def monitors(folder: Path) -> list[Json]:
    """Return the chart's PodMonitors."""
    return by_kind(with_prometheus(folder, **ON), "PodMonitor")


def kinds(objects: list[Json]) -> set[str]:
    return {body["kind"] for body in objects} & {"PodMonitor", "PrometheusRule", "ConfigMap"}


def test_nothing_is_rendered_unless_asked_for(tmp_path: Path) -> None:
    assert kinds(with_prometheus(tmp_path)) == set()


def test_without_prometheus_operator_only_the_dashboards_are_rendered() -> None:
    with Chart.load(PATH) as chart:
        assert kinds(rendered(chart, **ON)) == {"ConfigMap"}


def test_dashboards_are_found_by_grafanas_sidecar_in_their_folder(tmp_path: Path) -> None:
    maps = by_kind(with_prometheus(tmp_path, **ON), "ConfigMap")

    assert [body["metadata"]["name"] for body in maps] == ["shoal-dashboard-fleet", "shoal-dashboard-service"]
    for body in maps:
        assert body["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert body["metadata"]["annotations"] == {"grafana_folder": "Shoal"}
        ((name, text),) = body["data"].items()
        assert text == (PATH / "files/dashboards" / name.removeprefix("shoal-")).read_text()
        assert json.loads(text)["uid"].startswith("shoal-")


def test_the_pods_that_are_scraped_are_those_of_services_operators_and_activators(tmp_path: Path) -> None:
    objects = with_prometheus(tmp_path, monitoring={"podMonitor": {"enabled": True, "labels": LABELS}})
    found = {body["metadata"]["name"]: body for body in by_kind(objects, "PodMonitor")}
    deployments = {body["metadata"]["name"]: body["spec"]["template"] for body in by_kind(objects, "Deployment")}

    assert set(found) == {"shoal-services", "shoal-operator", "shoal-activator"}
    assert all(body["metadata"]["labels"]["release"] == "prometheus" for body in found.values())
    for name, template in deployments.items():
        monitor = found[name]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
        assert monitor["podMetricsEndpoints"][0]["port"] in ports
    # Else the operator's own labels of a service would be those of the operator's pod.
    assert found["shoal-operator"]["spec"]["podMetricsEndpoints"][0]["honorLabels"]
    services = found["shoal-services"]["spec"]
    assert services["namespaceSelector"] == {"any": True}
    relabelings = services["podMetricsEndpoints"][0]["relabelings"]
    service, candidate = (
        [f"__meta_kubernetes_pod_label_{label.replace('.', '_').replace('/', '_')}"]
        for label in (SERVICE_LABEL, CANDIDATE_LABEL)
    )
    assert relabelings[0] == {"sourceLabels": service, "targetLabel": "service"}
    # Pods of a candidate do not have the label of a service.
    assert relabelings[1] == {
        "sourceLabels": candidate,
        "regex": "(.+)",
        "replacement": "$1-candidate",
        "targetLabel": "service",
    }


def test_an_operator_of_some_namespaces_has_its_services_scraped_there_alone(tmp_path: Path) -> None:
    objects = with_prometheus(tmp_path, watchNamespaces=["team-a"], activator={"enabled": False}, **ON)
    found = {body["metadata"]["name"]: body["spec"] for body in by_kind(objects, "PodMonitor")}

    assert set(found) == {"shoal-services", "shoal-operator"}
    assert found["shoal-services"]["namespaceSelector"] == {"matchNames": ["team-a"]}


def test_the_rules_are_the_files_with_the_budget_and_the_runbooks_that_were_given(tmp_path: Path) -> None:
    given = {"enabled": True, "labels": LABELS, "errorBudget": 0.001, "runbooks": "https://wiki.example/shoal"}
    (body,) = by_kind(with_prometheus(tmp_path, monitoring={"rules": given}), "PrometheusRule")
    stored = yaml.safe_load((PATH / "files/prometheus/rules.yaml").read_text())
    rules = [rule for group in body["spec"]["groups"] for rule in group["rules"]]

    assert [group["name"] for group in body["spec"]["groups"]] == [group["name"] for group in stored["groups"]]
    assert rules[0] == {"record": "shoal:error_budget", "expr": "vector(0.001)"}
    urls = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert "https://wiki.example/shoal#shoalrefusals" in urls
    assert not any("docs/" in url for url in urls)
    assert "{{ $labels.service }}" in str(rules)


@pytest.mark.parametrize(
    "values",
    [
        {"podMonitor": {"interval": "soon"}},
        {"rules": {"errorBudget": 2}},
        {"alerts": {}},
        {"dashboards": {"label": {}}},
    ],
)
def test_wrong_values_are_refused(values: Json) -> None:
    with Chart.load(PATH) as chart, pytest.raises(HelmError):
        rendered(chart, monitoring=values)
