"""Helm installs, tries, upgrades and removes the chart, and leaves alone what is not its own."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import OPERATOR, ROOT, Cluster
from e2e.clusters.joined import install_operator
from e2e.waiting import eventually
from shoal_local.installing import chart_directory, render, values
from tests import helm

CHART = "charts/shoal"
PREVIOUS = "e2e/charts/previous.tgz"
"""The chart of 2026-11-26 as version 0.0.9, with the definitions that were current at noon."""
DEFINITION = "inferenceservices.serving.shoal.dev"
OPERATORS = ("install", "upgrade")


class Releases:
    """Helm, in the namespace of the operator, and what it installed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        # This cluster has no DNS, so the activator gets the operator's address once that is running.
        given = values() | {"activator": {"enabled": False}}
        self._values = folder / "values.yaml"
        self._values.write_text(yaml.safe_dump(given))

    def __call__(self, command: str, name: str, *args: str, check: bool = True, **chosen: Any) -> str:
        options = ["--namespace", "shoal-system", "--timeout", "90s"]
        if command in OPERATORS:
            options += ["--wait", "--values", str(self._values), *self._chosen(chosen)]
        done = subprocess.run(
            [*helm.command(), command, name, *args, *options],
            env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode == 0) is check, f"helm {command}: {done.stdout}{done.stderr}{self._pods()}"
        return done.stdout + done.stderr

    def _chosen(self, chosen: dict[str, Any]) -> list[str]:
        return [part for key, value in chosen.items() for part in ("--set", f"{key.replace('_', '.')}={value}")]

    def _pods(self) -> str:
        return self.cluster.kubectl("describe", "pods", check=False).stdout


@pytest.fixture(scope="module")
def without_operator(cluster: Cluster) -> Iterator[Cluster]:
    """Take the suite's own install away, the definition with it; put it back at the end."""
    system = cluster.within("shoal-system")
    objects = [body for body in render(chart_directory()) if body["kind"] != "Namespace"]
    try:
        system.kubectl("delete", "--ignore-not-found", "--filename", "-", text=yaml.safe_dump_all(objects))
        yield system
    finally:
        install_operator(cluster.kubeconfig)


@pytest.fixture
def releases(without_operator: Cluster, tmp_path: Path) -> Iterator[Releases]:
    """Give Helm, in a cluster that never saw Shoal; afterwards it never did."""
    given = Releases(without_operator, tmp_path)
    yield given
    names = {each["metadata"]["labels"]["name"] for each in without_operator.get("secrets", selector="owner=helm")}
    for name in names:
        given("uninstall", name)
    without_operator.kubectl("delete", "--ignore-not-found", "--filename", str(ROOT / "crds"))
    eventually(lambda: not without_operator.get("pods"))


def definition(cluster: Cluster) -> Any:
    return cluster.get("crd", DEFINITION)


def test_an_install_is_tried_and_leaves_nothing_of_the_trial(releases: Releases) -> None:
    output = releases("install", "shoal", CHART)

    assert "helm test shoal --namespace shoal-system" in output
    releases("test", "shoal")
    left = releases.cluster.get("infsvc,pods,serviceaccounts,roles,rolebindings")
    assert [each["metadata"]["name"] for each in left if each["metadata"]["name"].startswith("shoal-t")] == []


def test_a_trial_of_an_operator_that_does_nothing_fails_and_says_why(releases: Releases) -> None:
    releases("install", "shoal", CHART, replicas=0, tests_timeoutSeconds=10)

    releases("test", "shoal", check=False)
    log = releases.cluster.kubectl("logs", "shoal-test").stdout
    assert "failed: service shoal-trial in namespace shoal-system sent no response within 10 s" in log
    assert releases.cluster.get("infsvc") == []
    assert not releases.cluster.get("role", "shoal-test")
    releases.cluster.kubectl("delete", "pod", "shoal-test")


def test_an_install_over_the_definition_that_kubectl_applied_leaves_it_alone(releases: Releases) -> None:
    releases.cluster.kubectl("apply", "--filename", str(ROOT / "crds"))
    before = definition(releases.cluster)["metadata"]

    releases("install", "shoal", CHART)
    releases("upgrade", "shoal", CHART)
    releases("uninstall", "shoal")
    assert definition(releases.cluster)["metadata"]["resourceVersion"] == before["resourceVersion"]


def test_services_stay_when_the_release_goes_and_serve_on_under_another_name(
    releases: Releases, namespace: Cluster
) -> None:
    releases("install", "first", CHART)
    namespace.apply()
    namespace.until_ready()
    before = namespace.get("pods")[0]["metadata"]["uid"]

    releases("uninstall", "first")
    assert predict(namespace) == EXPECTED
    releases("install", "second", CHART)
    namespace.apply(replicas=2)
    namespace.until_ready()

    assert before in [pod["metadata"]["uid"] for pod in namespace.get("pods")]
    assert definition(namespace)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "first"


def test_a_definition_of_another_version_is_not_installed_over_but_the_way_is_told(releases: Releases) -> None:
    releases("install", "first", PREVIOUS)
    releases("uninstall", "first")

    output = releases("install", "second", CHART, check=False)
    assert "belongs to the Helm release first in namespace shoal-system" in output
    command = output.strip().partition("kubectl ")[2].partition("\n")[0]
    releases.cluster.kubectl(*command.replace("crds/", str(ROOT / "crds")).split())
    releases("install", "second", CHART)


def test_a_definition_can_be_handed_to_a_release(releases: Releases) -> None:
    releases.cluster.kubectl("apply", "--filename", str(ROOT / "crds"))
    owner = ("meta.helm.sh/release-name=shoal", "meta.helm.sh/release-namespace=shoal-system")
    releases.cluster.kubectl("annotate", "crd", DEFINITION, *owner)
    releases.cluster.kubectl("label", "crd", DEFINITION, "app.kubernetes.io/managed-by=Helm")

    releases("install", "shoal", CHART)
    assert definition(releases.cluster)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_an_upgrade_from_the_chart_before_keeps_services_as_they_run(releases: Releases, namespace: Cluster) -> None:
    releases("install", "shoal", PREVIOUS)
    namespace.apply()
    namespace.until_ready()
    service, pods = namespace.get("infsvc", "adder")["metadata"]["uid"], namespace.get("pods")
    operator = releases.cluster.get("pods", selector=OPERATOR)[0]["metadata"]["uid"]

    releases("upgrade", "shoal", CHART)

    [renewed] = eventually(
        lambda: [
            each for each in releases.cluster.get("pods", selector=OPERATOR) if each["metadata"]["uid"] != operator
        ]
    )
    assert renewed["status"]["phase"] == "Running"
    assert "serving.shoal.dev/definition" in definition(namespace)["metadata"]["annotations"]
    assert namespace.get("infsvc", "adder")["metadata"]["uid"] == service
    assert [pod["metadata"]["uid"] for pod in namespace.get("pods")] == [pod["metadata"]["uid"] for pod in pods]
    namespace.apply(replicas=2)
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_a_release_that_keeps_no_definition_takes_it_and_every_service_away(
    releases: Releases, namespace: Cluster
) -> None:
    releases("install", "shoal", CHART, crds_keep="false")
    namespace.apply()
    namespace.until_ready()

    releases("uninstall", "shoal")
    eventually(lambda: not definition(namespace))
    eventually(lambda: not namespace.get("deployments,pods"))
    namespace.kubectl("apply", "--filename", str(ROOT / "crds"))  # the cleanup lists services


def test_a_release_that_keeps_its_definition_keeps_it_as_well_when_it_is_told_to_install_none(
    releases: Releases,
) -> None:
    releases("install", "shoal", CHART)
    releases("upgrade", "shoal", CHART, crds_install="false")

    assert definition(releases.cluster)


def test_replaced_definition_is_not_removed(releases: Releases) -> None:
    releases("install", "shoal", CHART)
    releases.cluster.kubectl("replace", "--filename", str(ROOT / "crds"))
    releases.cluster.kubectl("annotate", "crd", DEFINITION, "helm.sh/resource-policy-")
    before = definition(releases.cluster)["metadata"]["uid"]

    assert "is not the one of this version" in releases("upgrade", "shoal", CHART, check=False)
    releases.cluster.kubectl("replace", "--filename", str(ROOT / "crds"))
    releases("upgrade", "shoal", CHART)
    assert definition(releases.cluster)["metadata"]["uid"] == before


def test_an_operator_of_some_namespaces_is_tried_in_one_of_them(releases: Releases, namespace: Cluster) -> None:
    releases("install", "shoal", CHART, watchNamespaces=f"{{{namespace.namespace}}}")

    releases("test", "shoal")
    assert namespace.get("infsvc,roles,rolebindings", selector="app.kubernetes.io/component=test") == []


def test_view_reads_services_and_edit_writes_them(releases: Releases, namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("the embedded cluster has no roles `view`, `edit` and `admin`")
    releases("install", "shoal", CHART)
    for role in ("view", "edit", "admin"):
        namespace.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user=has-{role}")

    def may(user: str, verb: str, subresource: str = "") -> bool:
        options = (f"--as={user}", *([f"--subresource={subresource}"] if subresource else []))
        return namespace.kubectl("auth", "can-i", verb, "infsvc", *options, check=False).stdout.strip() == "yes"

    eventually(lambda: may("has-view", "watch"))
    eventually(lambda: may("has-admin", "deletecollection"))
    eventually(lambda: may("has-edit", "patch", "scale"))
    assert not may("has-view", "patch")
    assert not may("has-view", "patch", "scale")
    assert not may("has-edit", "patch", "status")
    assert not may("has-admin", "patch", "status")
