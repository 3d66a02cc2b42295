"""Pod settings that exceed the restricted Pod Security level.

`allowed` checks volumes. Unknown fields count as exceeding the level, as future fields may grant more.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal_operator.children.observation import dig
from shoal_operator.manifests.containers import BATCH, PROXY, RUNTIME
from shoal_schema.fields.declaring import Json

_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SELINUX = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
)  # fmt: skip
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def _is_profile(value: Any) -> bool:
    return dig(value, "type") in ("RuntimeDefault", "Localhost")


def listed(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list; the API server rejects other types."""
    return value if isinstance(value, list) else []


def _anything(_: Any) -> bool:
    return True


_Fine = Callable[[Any], bool]
_BOTH: Mapping[str, _Fine] = {
    "runAsNonRoot": lambda value: value is True,
    "runAsUser": lambda value: isinstance(value, int | float) and value >= 1,
    "runAsGroup": _anything,
    "seccompProfile": _is_profile,
    "appArmorProfile": _is_profile,
    "seLinuxOptions": lambda value: dig(value, "type") in _SELINUX and not (dig(value, "user") or dig(value, "role")),
    "windowsOptions": lambda value: not dig(value, "hostProcess"),
}
_POD: Mapping[str, _Fine] = {
    **_BOTH,
    **dict.fromkeys(("fsGroup", "fsGroupChangePolicy", "supplementalGroups"), _anything),
    **dict.fromkeys(("supplementalGroupsPolicy", "seLinuxChangePolicy"), _anything),
    "sysctls": lambda value: all(dig(each, "name") in _SYSCTLS for each in listed(value)),
}
_CONTAINER: Mapping[str, _Fine] = {
    **_BOTH,
    "allowPrivilegeEscalation": lambda value: value is False,
    "capabilities": lambda value: (
        "ALL" in listed(dig(value, "drop")) and all(each == "NET_BIND_SERVICE" for each in listed(dig(value, "add")))
    ),
    "privileged": lambda value: value is False,
    "procMount": lambda value: value == "Default",
    "readOnlyRootFilesystem": _anything,
}
_NEEDED_OF_POD = ("runAsNonRoot", "seccompProfile")
_NEEDED_OF_CONTAINER = ("allowPrivilegeEscalation", "capabilities")


def beyond_restricted(template: Json) -> Iterator[tuple[str, str]]:
    """Yield path and value of settings that exceed the restricted level."""
    pod = template["spec"]
    yield from _beyond("spec.pod.securityContext", pod.get("securityContext"), _POD, _NEEDED_OF_POD)
    for part in ("initContainers", "containers"):
        for container in pod.get(part, ()):
            own = container["name"] in (BATCH, RUNTIME, PROXY)
            name = RUNTIME if container["name"] == BATCH else container["name"]
            path = f"spec.{name}" if own else f"spec.pod.{part}[{container['name']}]"
            context = container.get("securityContext")
            yield from _beyond(f"{path}.securityContext", context, _CONTAINER, _NEEDED_OF_CONTAINER)
            # Host ports, and probes and hooks of other hosts.
            for port in listed(container.get("ports")):
                if number := dig(port, "hostPort"):
                    yield f"{path}.ports.hostPort", str(number)
            handlers = {name: container.get(name) for name in _PROBES}
            handlers |= {f"lifecycle.{name}": dig(container, "lifecycle", name) for name in ("postStart", "preStop")}
            for name, handler in handlers.items():
                for kind in ("httpGet", "tcpSocket"):
                    if host := dig(handler, kind, "host"):
                        yield f"{path}.{name}.{kind}.host", str(host)
    for name, value in template["metadata"]["annotations"].items():
        if name.startswith(_APP_ARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"spec.pod.annotations[{name}]", value


def _beyond(path: str, context: Any, fine: Mapping[str, _Fine], needed: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    # Fields that the level requires count even when they are missing.
    given = context if isinstance(context, dict) else {}
    for name in dict.fromkeys((*needed, *given)):
        value = given.get(name)
        if (value is not None or name in needed) and not fine.get(name, lambda _: False)(value):
            yield f"{path}.{name}", str(value)
