"""Every pod that the operator makes, where clusters are strict about what they admit."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from shoal_schema.fields.declaring import Json
from tests.operator.admission import refused_by_restricted, refused_by_restricted_v2
from tests.operator.manifests import test_golden, test_job
from tests.operator.manifests.test_golden import pod_of
from tests.operator.samples import DEFAULTS, DOWNLOADED, MINIMAL, SECURE, target


def pods() -> Mapping[str, Json]:
    """Return the spec of every kind of pod, as made from specs that do not say who their containers run as."""
    made = {name: pod_of(case) for name, case in test_golden.CASES.items()}
    for name, spec in {"job": test_job.MINIMAL, "job-downloading": test_job.EVERYTHING}.items():
        made[name] = test_job.made(spec)["spec"]["template"]["spec"]
    cluster = test_job.made(test_job.RAY)["spec"]["rayClusterSpec"]
    made["ray-head"] = cluster["headGroupSpec"]["template"]["spec"]
    made["ray-worker"] = cluster["workerGroupSpecs"][0]["template"]["spec"]
    return made


PODS = pods()
ASKED = {
    "everything": ["pod.runAsUser", "proxy.runAsUser", "audit.runAsUser"],
    "foreign": ["volumes[model]"],
}
"""What specs themselves ask for, by the pod: users of their own, and an image as a volume."""


@pytest.mark.parametrize("name", PODS)
def test_openshift_admits_it(name: str) -> None:
    assert sorted(refused_by_restricted_v2(PODS[name])) == sorted(ASKED.get(name, []))


@pytest.mark.parametrize("name", PODS)
def test_pod_security_admits_it(name: str) -> None:
    assert refused_by_restricted(PODS[name]) == []


@pytest.mark.parametrize(
    ("path", "value", "refused"),
    [
        (("securityContext", "fsGroup"), 65532, "fsGroup"),
        (("securityContext", "runAsUser"), 1000, "pod.runAsUser"),
        (("securityContext", "seLinuxOptions"), {"level": "s0:c1,c2"}, "pod.seLinuxOptions"),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}, "pod.seccompProfile"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "runtime.allowPrivilegeEscalation"),
        (("containers", 0, "securityContext", "capabilities"), {"add": ["SYS_ADMIN"]}, "runtime.capabilities.add"),
        (("containers", 0, "ports"), [{"hostPort": 80}], "runtime.ports"),
        (("volumes", 0), {"name": "node", "hostPath": {"path": "/"}}, "volumes[node]"),
        (("hostNetwork",), True, "hostNetwork"),
    ],
)
def test_the_rules_refuse(path: tuple[str | int, ...], value: object, refused: str) -> None:
    pod = copy.deepcopy(PODS["minimal"])
    holder: Any = pod
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value

    assert refused in refused_by_restricted_v2(pod)


def test_a_group_that_the_install_names_is_every_pods_but_one_of_the_spec_wins() -> None:
    defaults = structs.replace(DEFAULTS, pod_fs_group=7)
    own = {**MINIMAL, "pod": {"securityContext": {"fsGroup": 8}}}
    groups = [
        pod_of(target(spec, defaults=defaults))["securityContext"]["fsGroup"] for spec in (MINIMAL, DOWNLOADED, own)
    ]

    assert groups == [7, 7, 8]


def test_init_container_and_runtime_have_the_same_user() -> None:
    spec = {**DOWNLOADED, "runtime": {"securityContext": {"runAsUser": 7, "runAsGroup": 8, "privileged": True}}}
    [fetching] = pod_of(target(spec))["initContainers"]

    own = fetching["securityContext"]
    assert (own["runAsUser"], own["runAsGroup"]) == (7, 8)
    assert "privileged" not in own


def test_any_user_may_read_the_certificate() -> None:
    volumes = {each["name"]: each for each in pod_of(target(SECURE))["volumes"]}

    assert volumes["tls"]["secret"]["defaultMode"] == volumes["client-ca"]["secret"]["defaultMode"] == 0o444
    for container in pod_of(target(SECURE))["containers"]:
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert ("tls" in mounted) == (container["name"] == "proxy")
