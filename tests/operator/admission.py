"""What admits pods on clusters: Pod Security's level `restricted`, and OpenShift's constraint `restricted-v2`.

Of OpenShift: what a namespace assigns is filled in where a pod says nothing, so only what a pod says can be refused.
Sources: kubernetes.io, Pod Security Standards; docs.openshift.com, Managing security context constraints.
"""

from collections.abc import Iterator

from shoal_schema.fields.declaring import Json

USERS = range(1_000_620_000, 1_000_630_000)
"""Of a namespace: annotation ``openshift.io/sa.scc.uid-range``; its groups are the same."""
SELINUX_LEVEL = "s0:c26,c0"
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_OF_THE_NODE = ("hostIPC", "hostNetwork", "hostPID")
_CAPABILITIES = {"NET_BIND_SERVICE"}


def refused_by_restricted_v2(pod: Json) -> list[str]:
    """Return the fields of a pod's spec that OpenShift refuses in a namespace of its own users."""
    return [*_of_both(pod, _VOLUMES), *_of_openshift(pod)]


def refused_by_restricted(pod: Json) -> list[str]:
    """Return the fields of a pod's spec that Pod Security's strictest level refuses."""
    return [*_of_both(pod, {*_VOLUMES, "image"}), *_of_pod_security(pod)]


def _of_both(pod: Json, volumes: set[str]) -> Iterator[str]:
    yield from (name for name in _OF_THE_NODE if pod.get(name))
    for volume in pod.get("volumes", []):
        if not volumes & volume.keys():
            yield f"volumes[{volume['name']}]"
    for name, context in _contexts(pod):
        if context.get("runAsUser") == 0:
            yield f"{name}.runAsUser"
        if context.get("seccompProfile", {"type": "RuntimeDefault"})["type"] != "RuntimeDefault":
            yield f"{name}.seccompProfile"
    for container in _containers(pod):
        yield from _of_container(container)


def _of_container(container: Json) -> Iterator[str]:
    name, context = container["name"], container.get("securityContext", {})
    if context.get("privileged") or context.get("procMount", "Default") != "Default":
        yield f"{name}.privileged"
    if not set(context.get("capabilities", {}).get("add", [])) <= _CAPABILITIES:
        yield f"{name}.capabilities.add"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}.ports"


def _of_openshift(pod: Json) -> Iterator[str]:
    group = pod.get("securityContext", {}).get("fsGroup")
    if group is not None and group not in USERS:
        yield "fsGroup"
    for name, context in _contexts(pod):
        if context.get("runAsUser") not in (None, *USERS):
            yield f"{name}.runAsUser"
        if context.get("seLinuxOptions", {"level": SELINUX_LEVEL}) != {"level": SELINUX_LEVEL}:
            yield f"{name}.seLinuxOptions"
        if context.get("allowPrivilegeEscalation"):
            yield f"{name}.allowPrivilegeEscalation"


def _of_pod_security(pod: Json) -> Iterator[str]:
    own = pod.get("securityContext", {})
    for container in _containers(pod):
        name, context = container["name"], container.get("securityContext", {})
        if {**own, **context}.get("runAsNonRoot") is not True:
            yield f"{name}.runAsNonRoot"
        if "seccompProfile" not in {**own, **context}:
            yield f"{name}.seccompProfile"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name}.allowPrivilegeEscalation"
        if "ALL" not in context.get("capabilities", {}).get("drop", []):
            yield f"{name}.capabilities.drop"


def _containers(pod: Json) -> list[Json]:
    return [*pod["containers"], *pod.get("initContainers", [])]


def _contexts(pod: Json) -> Iterator[tuple[str, Json]]:
    yield "pod", pod.get("securityContext", {})
    for container in _containers(pod):
        yield container["name"], container.get("securityContext", {})
