"""Every definition that the chart has installed, and objects that were written under them.

`definitions/PLURAL.jsonl` has a line for each distinct `spec` of a CustomResourceDefinition, without descriptions:
the first whole, each later one as a JSON patch of the earlier one it is nearest to. Names are commits, then releases.
`objects.jsonl` has the manifests of the examples, the pages and the tests of those commits.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch

from shoal_schema.fields.declaring import Json
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import Definition, custom_resource_definition, services
from shoal_schema.publishing.graph import graphs
from shoal_schema.resource import API_VERSION, GROUP

FOLDER = Path(__file__).parent
DEFINITIONS: Mapping[str, Definition] = {each.plural: each for each in (services(), graphs(), batches())}
"""Plural -> the kind as this commit defines it."""


@dataclass(frozen=True)
class Recorded:
    """One definition of a kind, as a commit or a release had it."""

    plural: str
    name: str
    spec: Json

    @property
    def crd(self) -> Json:
        """The CustomResourceDefinition."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": self.spec,
        }

    @property
    def schema(self) -> Json:
        """The schema of its objects."""
        found: Json = self.spec["versions"][0]["schema"]["openAPIV3Schema"]
        return found


@dataclass(frozen=True)
class Written:
    """The manifest of an object, and the name of the newest definition that it was tried and valid under."""

    source: str
    under: str
    kind: str
    spec: Json

    def manifest(self, name: str) -> Json:
        """Return the object as a user applies it."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": self.spec,
        }


@cache
def recorded(plural: str) -> tuple[Recorded, ...]:
    """Return the earlier definitions of a kind, the oldest first."""
    found: dict[str, Json] = {}
    for line in _lines(FOLDER / "definitions" / f"{plural}.jsonl"):
        whole = "spec" in line
        found[line["name"]] = line["spec"] if whole else jsonpatch.apply_patch(found[line["base"]], line["patch"])
    return tuple(Recorded(plural, name, spec) for name, spec in found.items())


def present(plural: str) -> Recorded:
    """Return the definition of this commit."""
    return Recorded(plural, "present", without_descriptions(custom_resource_definition(DEFINITIONS[plural])["spec"]))


@cache
def written() -> tuple[Written, ...]:
    """Return the manifests, in the order in which they were first written."""
    return tuple(Written(**line) for line in _lines(FOLDER / "objects.jsonl"))


def without_descriptions(value: Any) -> Any:
    """Return a schema without its texts, which no API server acts on."""
    if isinstance(value, list):
        return [without_descriptions(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if name != "description" or not isinstance(each, str)}
    return {name: without_descriptions(each) for name, each in kept.items()}


def _lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
