"""The chart's objects, as the real Helm SDK renders them."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from shoal_schema.fields.declaring import Json

IMAGES: Json = {"registry": "shoal"}
PATH = Path(__file__).parents[3] / "charts/shoal"


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice: Helm and kubectl take the last one, kustomize none."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {sorted(keys)}, {node.start_mark}"
        return super().construct_mapping(node, deep)


def with_images(values: Json) -> Json:
    """Return values with a registry of the images, without which the chart refuses to install."""
    return {**values, "images": {**IMAGES, **values.get("images", {})}}


def rendered(chart: Chart, **values: Any) -> list[Json]:
    files = chart.render(values=with_images(values), name="shoal", namespace="shoal-system")
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    return [body for text in texts for body in yaml.load_all(text, Strict) if body]


def is_hook(body: Json) -> bool:
    """Return whether it is there for `helm test` only."""
    return "helm.sh/hook" in body["metadata"].get("annotations", {})


def installed(chart: Chart, **values: Any) -> list[Json]:
    """Return what is there after `helm install`."""
    return [body for body in rendered(chart, **values) if not is_hook(body)]


def by_kind(objects: list[Json], kind: str) -> list[Json]:
    return [body for body in objects if body["kind"] == kind]


def container_of(objects: list[Json], name: str = "operator") -> Json:
    deployments = {body["metadata"]["name"]: body for body in by_kind(objects, "Deployment")}
    (container,) = deployments[f"shoal-{name}"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment(objects: list[Json], name: str = "operator") -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container_of(objects, name)["env"]}
