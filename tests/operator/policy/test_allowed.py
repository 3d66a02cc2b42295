"""What a spec may not ask for: each rule fires and is silent, and no pod under the default policy leaves its level."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.origin import with_source
from shoal_operator.manifests.target import Target
from shoal_operator.policy.allowed import RULES, not_allowed
from shoal_schema.fields.declaring import Json, fields_of
from shoal_schema.resource.policy import Policy
from tests.operator.samples import (
    BY_HPA,
    BY_KEDA,
    DEFAULTS,
    DOWNLOADED,
    FOREIGN,
    MINIMAL,
    target,
    with_fields,
)


def asked(spec: Json, **policy: Any) -> str:
    """Return what is refused of a spec under the default policy, but for these values."""
    return not_allowed(under(spec, **policy))


def under(spec: Json, **policy: Any) -> Target:
    """Return the target as a reconciliation makes it: with what a URI mounts."""
    made = target(spec, defaults=structs.replace(DEFAULTS, policy=Policy(**policy)))
    return dataclasses.replace(made, spec=with_source(made.spec))


def pod(**fields: Any) -> Json:
    return with_fields(MINIMAL, pod=fields)


def container(**fields: Any) -> Json:
    return pod(containers=[{"name": "a", "image": "a:1", **fields}])


def ingress(**fields: Any) -> Json:
    return with_fields(MINIMAL, route={"ingress": {"host": "cat.example.com", **fields}})


def env(**source: Any) -> list[Json]:
    return [{"name": "A", "valueFrom": source}]


KEY = {"secretKeyRef": {"name": "database", "key": "password"}}
CASES: list[tuple[Json, str, str, Json]] = [
    # a spec, the field that is named, the chart's value that allows it, and that value
    (
        pod(serviceAccountName="admin"),
        "spec.pod.serviceAccountName 'admin'",
        "serviceAccounts",
        {"service_accounts": ("adm*",)},
    ),
    (
        pod(serviceAccountName="cat"),
        "spec.pod.serviceAccountName 'cat'",
        "serviceAccounts",
        {"service_accounts": ("*",)},
    ),
    (
        with_fields(MINIMAL, runtime={"env": env(**KEY)}),
        "spec.runtime.env[0].valueFrom.secretKeyRef.name 'database'",
        "secrets",
        {"secrets": ("data*",)},
    ),
    (
        with_fields(MINIMAL, proxy={"env": env(**KEY)}),
        "spec.proxy.env[0].valueFrom.secretKeyRef.name 'database'",
        "secrets",
        {"secrets": ("*",)},
    ),
    (
        container(env=env(**KEY)),
        "spec.pod.containers[0].env[0].valueFrom.secretKeyRef.name",
        "secrets",
        {"secrets": ("*",)},
    ),
    (
        container(envFrom=[{"secretRef": {"name": "x"}}]),
        "spec.pod.containers[0].envFrom[0].secretRef.name 'x'",
        "secrets",
        {"secrets": ("x",)},
    ),
    (
        pod(volumes=[{"name": "v", "secret": {"secretName": "x"}}]),
        "spec.pod.volumes[0].secret.secretName 'x'",
        "secrets",
        {"secrets": ("x",)},
    ),
    (
        pod(
            volumes=[{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "x"}}]}}]
        ),
        "spec.pod.volumes[0].projected.sources[1].secret.name 'x'",
        "secrets",
        {"secrets": ("x",)},
    ),
    (pod(imagePullSecrets=[{"name": "x"}]), "spec.pod.imagePullSecrets[0].name 'x'", "secrets", {"secrets": ("x",)}),
    (
        with_fields(DOWNLOADED, model__secretName="keys"),
        "spec.model.secretName 'keys'",
        "secrets",
        {"secrets": ("keys",)},
    ),
    (ingress(tlsSecretName="bank"), "spec.route.ingress.tlsSecretName 'bank'", "secrets", {"secrets": ("bank",)}),
    (
        with_fields(MINIMAL, model__volume={"hostPath": {"path": "/"}}),
        "spec.model.volume 'hostPath'",
        "volumes",
        {"volumes": ("hostPath",)},
    ),
    (
        pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        "spec.pod.volumes[v] 'hostPath'",
        "volumes",
        {"volumes": ("hostPath",)},
    ),
    (
        pod(volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        "spec.pod.volumes[v] 'serviceAccountToken'",
        "volumes",
        {"volumes": ("projected", "serviceAccountToken")},
    ),
    (
        pod(volumes=[{"name": "v", "csi": {"driver": "d"}}]),
        "spec.pod.volumes[v] 'csi'",
        "volumes",
        {"volumes": ("csi",)},
    ),
    (
        ingress(annotations={"nginx.ingress.kubernetes.io/configuration-snippet": "x"}),
        "spec.route.ingress.annotations 'nginx",
        "annotations",
        {"annotations": ("*-snippet",)},
    ),
    (
        ingress(annotations={"nginx.ingress.kubernetes.io/proxy-body-size": "1m;\n} location /own {"}),
        "spec.route.ingress.annotations 'nginx.ingress.kubernetes.io/proxy-body-size=1m;",
        "annotations",
        {"annotations": ("nginx.ingress.kubernetes.io/*=*",)},
    ),
    (
        ingress(annotations={"nginx.ingress.kubernetes.io/proxy-request-buffering": "on; root /"}),
        "spec.route.ingress.annotations 'nginx",
        "annotations",
        {"annotations": ("*=on; *",)},
    ),
    (
        with_fields(MINIMAL, service={"annotations": {"external-dns.alpha.kubernetes.io/hostname": "x"}}),
        "spec.service.annotations 'external-dns",
        "annotations",
        {"annotations": ("external-dns*",)},
    ),
    (
        with_fields(MINIMAL, service={"type": "LoadBalancer"}),
        "spec.service.type 'LoadBalancer'",
        "services",
        {"services": ("LoadBalancer",)},
    ),
    (
        pod(priorityClassName="system-node-critical"),
        "spec.pod.priorityClassName",
        "priorityClasses",
        {"priority_classes": ("*",)},
    ),
]
"""What the default policy refuses."""
NARROWED: list[tuple[Json, str, Json, Json]] = [
    # a spec, the field that is named, a policy that refuses it, and one that does not
    (
        with_fields(MINIMAL, runtime={"image": "evil/a:1"}),
        "spec.runtime.image 'evil/a:1'",
        {"images": ("good/*",)},
        {"images": ("evil/*",)},
    ),
    (
        with_fields(
            MINIMAL, asynchronous={"webhooks": {"allowedHosts": ["hooks.example.com"], "secretName": "shoal-hooks"}}
        ),
        "spec.asynchronous.webhooks.allowedHosts 'hooks.example.com'",
        {"webhook_hosts": ("*.internal",)},
        {"webhook_hosts": ("*.example.com",)},
    ),
    (
        with_fields(MINIMAL, proxy={"image": "evil/a:1"}),
        "spec.proxy.image",
        {"images": ("good/*",)},
        {"images": ("evil/*",)},
    ),
    (container(), "spec.pod.containers[a].image 'a:1'", {"images": ("good/*",)}, {"images": ("a:?",)}),
    (pod(initContainers=[{"name": "b"}]), "spec.pod.initContainers[b].image", {"images": ("good/*",)}, {}),
    (
        with_fields(MINIMAL, model__uri="oci://evil/m:1"),
        "spec.model 'evil/m:1'",
        {"images": ("good/*",)},
        {"images": ("evil/*",)},
    ),
    (
        pod(volumes=[{"name": "v", "image": {"reference": "evil/m:1"}}]),
        "spec.pod.volumes[0].image.reference 'evil/m:1'",
        {"images": ("good/*",)},
        {"images": ("evil/*",)},
    ),
    (
        ingress(),
        "spec.route.ingress.host 'cat.example.com'",
        {"hosts": ("*.$(NAMESPACE).example.com",)},
        {"hosts": ("*.example.com",)},
    ),
    (
        ingress(host="a.default.example.com"),
        "spec.route.ingress.host",
        {"hosts": ("*.other.example.com",)},
        {"hosts": ("*.$(NAMESPACE).example.com",)},
    ),
    (
        with_fields(MINIMAL, route={"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["a.b", "bank.com"]}}),
        "spec.route.httpRoute.hostnames 'bank.com'",
        {"hosts": ("*.b",)},
        {"hosts": ("*.b", "bank.com")},
    ),
    (
        with_fields(MINIMAL, route={"httpRoute": {"parentRefs": [{"name": "g"}]}}),
        "spec.route.httpRoute.hostnames '*'",
        {"hosts": ("*.b",)},
        {},
    ),
    (
        with_fields(MINIMAL, model__uri="pvc://c/m"),
        "spec.model.volume 'persistentVolumeClaim'",
        {"volumes": ()},
        {"volumes": ("p*",)},
    ),
    (pod(runtimeClassName="kata"), "spec.pod.runtimeClassName 'kata'", {"runtime_classes": ("nvidia",)}, {}),
    (pod(labels={"app": "bank"}), "spec.pod.labels 'app'", {"pod_labels": ("team",)}, {"pod_labels": ("a*",)}),
    (pod(annotations={"a/b": "c"}), "spec.pod.annotations 'a/b'", {"pod_annotations": ()}, {}),
]


@pytest.mark.parametrize(("spec", "said", "value", "allowing"), CASES)
def test_value_that_the_default_policy_rejects_is_named_and_can_be_allowed(
    spec: Json, said: str, value: str, allowing: Json
) -> None:
    reported = asked(spec)

    assert said in reported
    assert f"(policy.{value}: " in reported
    assert reported.endswith("(docs/how-to/policy.md)")
    assert asked(spec, **allowing) == ""


@pytest.mark.parametrize(("spec", "said", "refusing", "allowing"), NARROWED)
def test_what_the_default_policy_allows_can_be_narrowed(spec: Json, said: str, refusing: Json, allowing: Json) -> None:
    assert asked(spec) == ""
    assert said in asked(spec, **refusing)
    assert asked(spec, **allowing) == ""


def test_every_value_of_the_policy_has_a_rule_and_a_case() -> None:
    values = {each.name for each in fields_of(Policy)} - {"root"}
    defaults = {value for *_, value, _ in CASES}
    narrowed = {name for *_, refusing, _ in NARROWED for name in refusing}

    assert set(RULES) == values
    camel = {each.path[0]: each.name for each in fields_of(Policy)}
    assert defaults | {camel[name] for name in narrowed} == values


@pytest.mark.parametrize("spec", [MINIMAL, DOWNLOADED, FOREIGN, BY_HPA, BY_KEDA])
def test_ordinary_services_may_have_what_they_ask_for(spec: Json) -> None:
    assert asked(spec) == ""


@pytest.mark.parametrize(
    "spec",
    [
        with_fields(DOWNLOADED, model__secretName="shoal-keys"),
        pod(volumes=[{"name": "v", "emptyDir": {}}, {"name": "w"}, {"name": "c", "configMap": {"name": "x"}}]),
        pod(imagePullSecrets=[{"name": "shoal-registry"}]),
        ingress(tlsSecretName="shoal-cat", annotations={"nginx.ingress.kubernetes.io/proxy-read-timeout": "60"}),
        ingress(annotations={"cert-manager.io/cluster-issuer": "letsencrypt"}),
        with_fields(MINIMAL, model__parameters={"secretName": "x", "secretRef": {"name": "y"}}),
        pod(securityContext={"runAsUser": 1000, "fsGroup": 7, "sysctls": [{"name": "net.ipv4.tcp_syncookies"}]}),
        container(securityContext={"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
        with_fields(MINIMAL, runtime={"image": DEFAULTS.runtime_image}),
    ],
)
def test_what_is_harmless_is_silent(spec: Json) -> None:
    assert asked(spec) == ""


def test_the_installs_own_images_are_always_allowed() -> None:
    own = with_fields(MINIMAL, runtime={"image": DEFAULTS.runtime_image}, proxy={"image": DEFAULTS.proxy_image})

    assert asked(own, images=()) == ""


BEYOND: list[tuple[Json, str]] = [
    (pod(securityContext={"runAsUser": 0}), "spec.pod.securityContext.runAsUser 0"),
    (pod(securityContext={"runAsNonRoot": False}), "spec.pod.securityContext.runAsNonRoot False"),
    (pod(securityContext={"runAsNonRoot": None}), "spec.pod.securityContext.runAsNonRoot None"),
    (pod(securityContext={"seccompProfile": {"type": "Unconfined"}}), "spec.pod.securityContext.seccompProfile"),
    (pod(securityContext={"sysctls": [{"name": "kernel.core_pattern"}]}), "spec.pod.securityContext.sysctls"),
    (pod(securityContext={"tomorrow": True}), "spec.pod.securityContext.tomorrow"),
    (pod(annotations={"container.apparmor.security.beta.kubernetes.io/runtime": "unconfined"}), "apparmor"),
    (
        with_fields(MINIMAL, runtime={"securityContext": {"privileged": True}}),
        "spec.runtime.securityContext.privileged",
    ),
    (with_fields(MINIMAL, proxy={"securityContext": {"runAsUser": 0}}), "spec.proxy.securityContext.runAsUser 0"),
    (container(securityContext={"allowPrivilegeEscalation": None}), "containers[a].securityContext.allowPrivilege"),
    (container(securityContext={"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}), "capabilities"),
    (container(securityContext={"capabilities": {"drop": ["NET_RAW"]}}), "capabilities"),
    (container(securityContext={"procMount": "Unmasked"}), "procMount"),
    (container(securityContext={"seLinuxOptions": {"user": "root"}}), "seLinuxOptions"),
    (container(securityContext={"windowsOptions": {"hostProcess": True}}), "windowsOptions"),
    (container(securityContext="x"), "spec.pod.containers[a].securityContext"),
    (container(ports=[{"containerPort": 1, "hostPort": 1}]), "spec.pod.containers[a].ports.hostPort 1"),
    (container(livenessProbe={"httpGet": {"host": "169.254.169.254"}}), "livenessProbe.httpGet.host"),
    (container(lifecycle={"preStop": {"tcpSocket": {"host": "x"}}}), "lifecycle.preStop.tcpSocket.host x"),
    (pod(initContainers=[{"name": "b", "securityContext": {"runAsNonRoot": False}}]), "initContainers[b].security"),
]


@pytest.mark.parametrize(("spec", "said"), BEYOND)
def test_field_that_exceeds_the_restricted_level_is_named(spec: Json, said: str) -> None:
    reported = asked(spec)

    assert said in reported
    assert "(policy.root: false, so the restricted Pod Security level applies)" in reported
    assert asked(spec, root=True) == ""


def violations(template: Json) -> list[str]:
    """Return what the restricted level has against a pod, as its documentation says it (v1.36)."""
    spec, found = template["spec"], []
    outer = spec.get("securityContext") or {}
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    sources = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"}
    sources |= {"projected", "secret"}
    found += [
        "volume" for each in spec.get("volumes", []) if not {k for k, v in each.items() if k != "name"} <= sources
    ]
    safe = {"net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range"}
    found += ["sysctl" for each in outer.get("sysctls") or () if each["name"] not in safe]
    for name, profile in template["metadata"]["annotations"].items():
        if name.startswith("container.apparmor.") and profile not in ("runtime/default",):
            found.append("apparmor annotation")
    for each in [*spec.get("initContainers", []), *spec["containers"]]:
        own = each.get("securityContext") or {}
        merged = {**outer, **{name: value for name, value in own.items() if value is not None}}
        add, drop = ((own.get("capabilities") or {}).get(part) or [] for part in ("add", "drop"))
        checks = {
            "privileged": own.get("privileged") in (None, False),
            "escalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": "ALL" in drop and set(add) <= {"NET_BIND_SERVICE"},
            "non-root": merged.get("runAsNonRoot") is True,
            "user": 0 not in (outer.get("runAsUser"), own.get("runAsUser")),
            "seccomp": (merged.get("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost"),
            "proc": own.get("procMount") in (None, "Default"),
            "ports": not any(port.get("hostPort") for port in each.get("ports") or ()),
            "probes": not any(
                ((each.get(probe) or {}).get("httpGet") or {}).get("host")
                for probe in ("livenessProbe", "readinessProbe", "startupProbe")
            ),
        }
        for context in (outer, own):
            seccomp, armor = (context.get(name) or {} for name in ("seccompProfile", "appArmorProfile"))
            linux, windows = (context.get(name) or {} for name in ("seLinuxOptions", "windowsOptions"))
            checks |= {
                f"profile {seccomp}": seccomp.get("type") != "Unconfined",
                f"armor {armor}": armor.get("type") in (None, "RuntimeDefault", "Localhost"),
                f"linux {linux}": linux.get("type") in (None, "container_t") and not linux.get("user"),
                f"windows {windows}": not windows.get("hostProcess"),
            }
        found += [f"{each['name']}: {name}" for name, held in checks.items() if not held]
    return found


PROFILES: tuple[Any, ...] = (None, {"type": "Unconfined"}, {"type": "RuntimeDefault"}, {"type": "Localhost"}, {})
ADDED = {"add": ["SYS_ADMIN"], "drop": ["ALL"]}
VALUES: dict[str, tuple[Any, ...]] = {
    "runAsNonRoot": (None, True, False),
    "runAsUser": (None, 0, 1, 1000),
    "seccompProfile": PROFILES,
    "appArmorProfile": PROFILES,
    "seLinuxOptions": (None, {"type": "container_t"}, {"type": "spc_t"}, {"user": "root"}),
    "windowsOptions": (None, {"hostProcess": True}, {"hostProcess": False}),
    "privileged": (None, True, False),
    "allowPrivilegeEscalation": (None, True, False),
    "procMount": (None, "Default", "Unmasked"),
    "capabilities": (None, {}, {"drop": ["ALL"]}, {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}, ADDED),
    "sysctls": (None, [{"name": "kernel.msgmax"}], [{"name": "net.ipv4.tcp_syncookies"}]),
}
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/a"
Edit = tuple[str, Json]
EDITS: list[Edit] = [
    *(
        (place, {name: value})
        for place in ("pod", "runtime", "proxy", "containers", "initContainers")
        for name, values in VALUES.items()
        for value in values
    ),
    ("fields", {"ports": [{"containerPort": 7000, "hostPort": 0}]}),
    ("fields", {"ports": [{"containerPort": 7000, "hostPort": 7000}]}),
    ("fields", {"livenessProbe": {"httpGet": {"port": 1}}}),
    ("fields", {"livenessProbe": {"httpGet": {"port": 1, "host": "10.0.0.1"}}}),
    ("volumes", {"hostPath": {"path": "/"}}),
    ("volumes", {"nfs": {"server": "s", "path": "/"}}),
    ("volumes", {"emptyDir": None, "hostPath": {"path": "/"}}),
    ("volumes", {"ephemeral": {}}),
    ("model", {"hostPath": {"path": "/"}}),
    ("model", {"persistentVolumeClaim": {"claimName": "c"}}),
    ("annotations", {APP_ARMOR: "unconfined"}),
    ("annotations", {APP_ARMOR: "runtime/default"}),
]
"""Where in a spec something is asked for, and what."""


def asking(base: Json, edits: list[Edit]) -> Target:
    """Return the target of a spec that asks for all of these, under the default policy."""
    given: dict[str, Json] = {place: {} for place, _ in EDITS}
    for place, fields in edits:
        given[place] |= fields
    pods = {
        "securityContext": given["pod"],
        "annotations": given["annotations"],
        "volumes": [{"name": "v", **given["volumes"]}],
        "containers": [{"name": "a", "image": "a:1", "securityContext": given["containers"], **given["fields"]}],
        "initContainers": [{"name": "b", "image": "b:1", "securityContext": given["initContainers"]}],
    }
    # A volume has one source, and no model that is downloaded has one.
    volume = given["model"] if len(given["model"]) == 1 and base is not DOWNLOADED else None
    spec = with_fields(base, pod=pods, model__volume=volume)
    contexts = {f"{place}__securityContext": given[place] for place in ("runtime", "proxy")}
    return under(with_fields(spec, **contexts))


def assert_held(made: Target) -> None:
    broken = violations(make_deployment(made)["spec"]["template"])
    assert not_allowed(made) or not broken, broken


@pytest.mark.parametrize("base", [MINIMAL, DOWNLOADED, FOREIGN], ids=["minimal", "downloaded", "foreign"])
def test_no_allowed_spec_exceeds_the_restricted_level(base: Json) -> None:
    assert not_allowed(asking(base, [])) == ""
    for edit in EDITS:
        assert_held(asking(base, [edit]))


@given(base=st.sampled_from([MINIMAL, DOWNLOADED, FOREIGN]), edits=st.lists(st.sampled_from(EDITS), max_size=4))
@settings(max_examples=300, deadline=None)
def test_nor_do_several_things_together(base: Json, edits: list[Edit]) -> None:
    assert_held(asking(base, edits))


STRICTER = ("tomorrow", "preStop", "'securityContext': 'x'")
"""Refused for caution: the level knows nothing of it."""


@pytest.mark.parametrize("spec", [spec for spec, _ in BEYOND if not any(word in str(spec) for word in STRICTER)])
def test_the_oracle_sees_what_breaks_the_level(spec: Json) -> None:
    assert violations(make_deployment(under(spec))["spec"]["template"]) != []
