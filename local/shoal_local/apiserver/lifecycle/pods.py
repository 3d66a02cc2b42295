"""Defaults of pods and pod templates, and the quality-of-service class."""

from typing import Any

Object = dict[str, Any]
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_MODES = ("secret", "configMap", "projected", "downwardAPI")


def template_defaults(spec: Object) -> None:
    """Fill in what every pod spec has, also one in a template."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        _container_defaults(container)
    for volume in spec.get("volumes", []):
        _volume_defaults(volume)


def _container_defaults(container: Object) -> None:
    tag = container.get("image", "").rpartition("/")[2]
    pinned = "@" in tag or (":" in tag and not tag.endswith(":latest"))
    container.setdefault("imagePullPolicy", "IfNotPresent" if pinned else "Always")
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    for port in container.get("ports", []):
        port.setdefault("protocol", "TCP")
    for probe in _PROBES:
        if probe in container:
            _probe_defaults(container[probe])
    for handler in container.get("lifecycle", {}).values():
        if isinstance(handler, dict):
            _http_defaults(handler)
    for variable in container.get("env", []):
        if field := variable.get("valueFrom", {}).get("fieldRef"):
            field.setdefault("apiVersion", "v1")


def _probe_defaults(probe: Object) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe.setdefault(name, value)
    _http_defaults(probe)
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _http_defaults(handler: Object) -> None:
    if "httpGet" in handler:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")


def _volume_defaults(volume: Object) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for source in _MODES:
        if source in volume:
            volume[source].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")


def pod_defaults(pod: Object) -> None:
    """Fill in what a pod gets beyond its template: account, requests, phase."""
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    template_defaults(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        _requests_from_limits(container["resources"])
    pod["status"] = {"phase": "Pending", **pod.get("status", {})}


def _requests_from_limits(resources: Object) -> None:
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}
