"""Every object of some services, against files that a person has read.

``SHOAL_WRITE_GOLDEN=1 python -m pytest tests/operator/manifests`` writes them anew.
"""

import os
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from msgspec import structs

from shoal_operator.manifests.desired import HTTP_ROUTE, SCALED_OBJECT, desired_objects
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.log import LogForm
from tests.operator.samples import (
    BY_HPA,
    BY_KEDA,
    DEFAULTS,
    DOWNLOADED,
    EVERYTHING,
    FOREIGN,
    JUDGED,
    MINIMAL,
    NEWER,
    OPEN,
    SECURE,
    graph,
    graph_target,
    target,
)

GOLDEN = Path(__file__).parents[1] / "golden"
LOCAL = structs.replace(DEFAULTS, listen_host="$(POD_IP)", admin_namespaces=("shoal-system",))
CASES = {
    "minimal": target(MINIMAL),
    "everything": target(EVERYTHING),
    "downloaded": target(DOWNLOADED, defaults=structs.replace(LOCAL, pod_log_format=LogForm.JSON)),
    "foreign": target(FOREIGN),
    "hpa": target(BY_HPA),
    "keda": target(BY_KEDA),
    "secure": target(SECURE, defaults=structs.replace(LOCAL, namespace="shoal-system", activator_selector="a=b,c=d")),
    "open": target(OPEN),
    "graph": graph_target(graph()),
    "candidate": replace(
        target(JUDGED, defaults=structs.replace(LOCAL, namespace="shoal-system", activator_selector="a=b")),
        candidate=replace(target(NEWER), candidate_replicas=1),
        held=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_objects_are_the_golden_ones(name: str) -> None:
    objects = list(desired_objects(CASES[name]).values())
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.write_text(yaml.safe_dump_all(objects, sort_keys=False, width=100))

    assert objects == list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("name", CASES)
def test_objects_pass_the_strict_schemas_of_kubernetes(name: str, version: str) -> None:
    for kind, body in desired_objects(CASES[name]).items():
        assert (body["kind"], body["apiVersion"]) == (kind.kind, kind.api_version)
        if kind not in (HTTP_ROUTE, SCALED_OBJECT):  # custom resources: their schemas are not Kubernetes' own
            kubernetes_validate.validate(body, version, strict=True)


def pod_of(made: Target) -> Json:
    """Return the spec of a service's pods."""
    objects = {body["kind"]: body for body in desired_objects(made).values()}
    spec: Json = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", CASES)
def test_every_mount_has_its_volume_and_every_variable_is_given_once(name: str) -> None:
    spec = pod_of(CASES[name])
    volumes = {volume["name"] for volume in spec["volumes"]}

    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
        names = [variable["name"] for variable in container.get("env", [])]
        assert len(names) == len(set(names))


def test_a_variable_that_refers_to_the_pods_address_comes_after_it() -> None:
    names = [variable["name"] for variable in pod_of(CASES["downloaded"])["containers"][1]["env"]]

    assert names.index("POD_IP") < names.index("SHOAL_PROXY_LISTEN")
