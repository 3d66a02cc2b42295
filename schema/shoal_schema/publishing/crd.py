"""The CustomResourceDefinitions, whole."""

import hashlib
import json
from dataclasses import dataclass, field

from shoal_schema.declaring import Json, Rule, Section
from shoal_schema.publishing.openapi import object_schema, rule_schema
from shoal_schema.resource import API_VERSION, GROUP, KIND, PLURAL, VERSION
from shoal_schema.resource.service import InferenceServiceSpec

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX_LENGTH = 63
DIGEST = f"{GROUP}/definition"
"""The annotation by which the chart sees whether a definition that it did not install is its own."""
KEPT = {"helm.sh/resource-policy": "keep"}
"""In the plain file too: Helm then does not delete what somebody replaced by it, and every service with it."""
SCALE: Json = {
    "scale": {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
}
"""The subresource by which `kubectl scale` and autoscalers set replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What tells one custom resource from another.

    Args:
        spec: the section that users write.
        status: properties of the status, its conditions left out.
        subresources: beside the status.
        rules: over the whole object.
    """

    kind: str
    plural: str
    short_name: str
    description: str
    spec: type[Section]
    status: Json
    columns: list[Json]
    conditions: str
    subresources: Json = field(default_factory=dict)
    name_max_length: int = NAME_MAX_LENGTH
    rules: tuple[Rule, ...] = ()


def custom_resource_definition(definition: Definition | None = None) -> Json:
    """Return a CRD as JSON: of ``InferenceService`` where no other is asked for."""
    definition = definition or services()
    spec = _spec(definition)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}", "annotations": {DIGEST: digest, **KEPT}},
        "spec": spec,
    }


def services() -> Definition:
    """Return what ``InferenceService`` is."""
    return Definition(
        kind=KIND,
        plural=PLURAL,
        short_name="infsvc",
        description="A model that is served: batching proxy, runtime, route and replicas.",
        spec=InferenceServiceSpec,
        status=_status(),
        columns=_columns(),
        conditions="What is true of the service, why, and what to do about it.",
        subresources=SCALE,
    )


def _spec(definition: Definition) -> Json:
    return {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": definition.kind,
            "listKind": f"{definition.kind}List",
            "plural": definition.plural,
            "singular": definition.kind.lower(),
            "shortNames": [definition.short_name],
        },
        "versions": [_version(definition)],
    }


def _version(definition: Definition) -> Json:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root_schema(definition)},
        "subresources": {"status": {}, **definition.subresources},
        "additionalPrinterColumns": definition.columns,
    }


def _columns() -> list[Json]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
        {"name": "URL", "type": "string", "jsonPath": ".status.url"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
        {"name": "Model", "type": "string", "jsonPath": ".status.model.resolved", "priority": 1},
        {"name": "Runtime", "type": "string", "jsonPath": ".status.images.runtime", "priority": 1},
        {"name": "Proxy", "type": "string", "jsonPath": ".status.images.proxy", "priority": 1},
        {
            "name": "Upgrade",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Upgraded")].reason',
            "priority": 1,
        },
        {"name": "Message", "type": "string", "jsonPath": f"{ready}.message", "priority": 1},
    ]


def _root_schema(definition: Definition) -> Json:
    name = {"type": "string", "maxLength": definition.name_max_length, "pattern": NAME_PATTERN}
    return {
        "type": "object",
        "description": definition.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of the schema: `{API_VERSION}`."},
            "kind": {"type": "string", "description": f"Kind of the object: `{definition.kind}`."},
            # The name becomes a Service's name and a label's value, so it must be a DNS label. API servers refuse a
            # description of metadata, and publish their own.
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": {"description": "What a user asks for.", **object_schema(definition.spec)},
            "status": _status_schema(definition),
        },
        **({"x-kubernetes-validations": [rule_schema(rule) for rule in definition.rules]} if definition.rules else {}),
    }


def _status_schema(definition: Definition) -> Json:
    return {
        "type": "object",
        "description": "What is true now; written by the operator only.",
        "properties": {
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The generation of the spec that this status is about.",
            },
            **definition.status,
            "conditions": _conditions_schema(definition.conditions),
        },
    }


def _status() -> Json:
    return {
        "replicas": {"type": "integer", "format": "int32", "description": "Number of pods that exist."},
        "readyReplicas": {"type": "integer", "format": "int32", "description": "Number of pods that answer requests."},
        "selector": {
            "type": "string",
            "description": "Label selector of the pods, for `kubectl scale` and an HPA.",
        },
        "url": {"type": "string", "description": "Where callers send requests."},
        "model": {
            "type": "object",
            "description": "What the name of the model stands for, where it is one that moves.",
            "properties": {
                "uri": {"type": "string", "description": "The name that was resolved, from `spec.model.uri`."},
                "resolved": {"type": "string", "description": "The version of the model that pods load."},
            },
        },
        "images": images_schema(),
        "upgrade": upgrade_schema(),
        "waitingRoom": {
            "type": "object",
            "description": "Where requests are held while the service has no pods.",
            "properties": {
                "port": {
                    "type": "integer",
                    "format": "int32",
                    "minimum": 1024,
                    "maximum": 65535,
                    "description": "Port of the activator that holds requests for this service.",
                }
            },
        },
    }


def _conditions_schema(description: str) -> Json:
    return {
        "type": "array",
        "description": description,
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "description": "What the condition is about: `Ready`."},
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether the condition holds.",
                },
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "description": "Why, in one word (docs/how-to/reasons.md).",
                },
                "message": {"type": "string", "maxLength": 32768, "description": "Why, in a sentence, and what to do."},
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "description": "The generation of the spec that the condition is about.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When `status` changed last.",
                },
            },
        },
    }


def images_schema() -> Json:
    """Return what a status says of images."""
    return {
        "type": "object",
        "description": "The operator's images that its pods are made with, where the spec names none.",
        "properties": {
            "proxy": {"type": "string", "description": "Image of the container `proxy`."},
            "runtime": {"type": "string", "description": "Image of the containers `runtime` and `model`."},
        },
    }


def upgrade_schema() -> Json:
    """Return what a status says of an upgrade."""
    return {
        "type": "object",
        "description": "The upgrade to other images or another pod template that is under way.",
        "required": ["since"],
        "properties": {
            "since": {"type": "string", "format": "date-time", "description": "When the upgrade began."},
            "wasReady": {
                "type": "boolean",
                "description": "Whether the service was ready before; if so, no other upgrade begins meanwhile.",
            },
        },
    }
