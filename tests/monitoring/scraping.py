"""Scrape configuration of Prometheus for PodMonitors, as the Prometheus operator renders them."""

import re
from collections.abc import Iterator
from pathlib import Path

from shoal_schema.fields.declaring import Json


def scrape_config(monitor: Json, targets: Path, interval: str) -> Json:
    """Return the job of a PodMonitor with one endpoint; ``targets`` is where `discovered` is written."""
    name, namespace = monitor["metadata"]["name"], monitor["metadata"]["namespace"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return {
        "job_name": f"podMonitor/{namespace}/{name}/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "metrics_path": endpoint.get("path", "/metrics"),
        "file_sd_configs": [{"files": [str(targets)]}],
        "relabel_configs": [
            *_within(monitor["spec"].get("namespaceSelector", {}), namespace),
            *_picked(monitor["spec"]["selector"]["matchLabels"]),
            {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
            {"action": "keep", "source_labels": [_meta("container_port_name")], "regex": endpoint["port"]},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": [_meta("container_name")], "target_label": "container"},
            {"source_labels": [_meta("name")], "target_label": "pod"},
            {"target_label": "job", "replacement": f"{namespace}/{name}"},
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            *(
                {
                    "source_labels": rule["sourceLabels"],
                    "target_label": rule["targetLabel"],
                    **{name: rule[name] for name in ("regex", "replacement") if name in rule},
                }
                for rule in endpoint.get("relabelings", ())
            ),
        ],
    }


def discovered(pods: list[Json]) -> list[Json]:
    """Return a target for each port of pods, as of Prometheus' service discovery.

    Debian's Prometheus is built without that discovery; what it reads from a file passes the same rules.
    """
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                _meta("name"): pod["metadata"]["name"],
                _meta("phase"): pod["status"]["phase"],
                _meta("container_name"): container["name"],
                _meta("container_port_name"): port["name"],
                **{_meta(f"label_{_name(label)}"): value for label, value in pod["metadata"]["labels"].items()},
                **{_meta(f"labelpresent_{_name(label)}"): "true" for label in pod["metadata"]["labels"]},
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        for port in container.get("ports", ())
    ]


def _within(chosen: Json, own: str) -> Iterator[Json]:
    if not chosen.get("any"):
        names = "|".join(chosen.get("matchNames", [own]))
        yield {"action": "keep", "source_labels": ["__meta_kubernetes_namespace"], "regex": names}


def _name(label: str) -> str:
    return re.sub(r"\W", "_", label)


def _picked(labels: dict[str, str]) -> Iterator[Json]:
    for label, value in labels.items():
        sources = [_meta(f"label_{_name(label)}"), _meta(f"labelpresent_{_name(label)}")]
        yield {"action": "keep", "source_labels": sources, "regex": f"({re.escape(value)});true"}


def _meta(name: str) -> str:
    return f"__meta_kubernetes_pod_{name}"
