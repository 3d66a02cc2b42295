"""Build the CustomResourceDefinitions of the custom resources."""

import hashlib
import json
from dataclasses import dataclass, field

from shoal_schema.fields.declaring import Json, SettingsSection
from shoal_schema.fields.rules import Rule
from shoal_schema.publishing.openapi import object_schema
from shoal_schema.resource import API_VERSION, GROUP, KIND, PLURAL, VERSION
from shoal_schema.resource.service import InferenceServiceSpec

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX_LENGTH = 63
DIGEST = f"{GROUP}/definition"
"""Annotation with a hash of the definition: the chart compares it with that of an installed definition."""
KEPT = {"helm.sh/resource-policy": "keep"}
"""In the plain file too: otherwise Helm would delete a definition replaced by hand, and all services with it."""
SCALE: Json = {
    "scale": {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
}
"""The subresource through which `kubectl scale` and autoscalers set replicas."""
# Columns with a priority are shown by `kubectl get -o wide` only.
_READY = '.status.conditions[?(@.type=="Ready")]'
SERVED: list[Json] = [
    {"name": "Ready", "type": "string", "jsonPath": f"{_READY}.status"},
    {"name": "Reason", "type": "string", "jsonPath": f"{_READY}.reason"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
]
"""The first columns of a resource with replicas."""
MESSAGE: Json = {"name": "Message", "type": "string", "jsonPath": f"{_READY}.message", "priority": 1}
_COLUMNS: list[Json] = [
    *SERVED,
    {"name": "Model", "type": "string", "jsonPath": ".status.model.resolved", "priority": 1},
    {"name": "Runtime", "type": "string", "jsonPath": ".status.images.runtime", "priority": 1},
    {"name": "Proxy", "type": "string", "jsonPath": ".status.images.proxy", "priority": 1},
    {
        "name": "Upgrade",
        "type": "string",
        "jsonPath": '.status.conditions[?(@.type=="Upgraded")].reason',
        "priority": 1,
    },
    {"name": "Rollout", "type": "string", "jsonPath": ".status.rollout.phase", "priority": 1},
    MESSAGE,
]
_CONDITIONS: Json = {
    "type": "array",
    "maxItems": 32,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "maxLength": 316, "description": "Type of the condition, such as `Ready`."},
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "reason": {
                "type": "string",
                "maxLength": 1024,
                "description": "Reason in one word (docs/how-to/reasons.md).",
            },
            "message": {
                "type": "string",
                "maxLength": 32768,
                "description": "Reason in a sentence, with the remedy.",
            },
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "Generation of the spec that the condition describes.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "Time of the last change of `status`.",
            },
        },
    },
}
"""Schema of conditions without its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The properties of one custom resource from which its CRD is built."""

    kind: str
    plural: str
    short_name: str
    description: str
    spec: type[SettingsSection]
    """The section that users write."""
    status: Json
    """Properties of the status without conditions."""
    columns: list[Json]
    conditions: str
    subresources: Json = field(default_factory=dict)
    """In addition to the status."""
    name_max_length: int = NAME_MAX_LENGTH
    rules: tuple[Rule, ...] = ()
    """Over the whole object."""


def custom_resource_definition(definition: Definition | None = None) -> Json:
    """Return a CRD as JSON; by default the CRD of ``InferenceService``."""
    definition = definition or services()
    # The hash covers everything below `spec`.
    spec = {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": definition.kind,
            "listKind": f"{definition.kind}List",
            "plural": definition.plural,
            "singular": definition.kind.lower(),
            "shortNames": [definition.short_name],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": _root_schema(definition)},
                "subresources": {"status": {}, **definition.subresources},
                "additionalPrinterColumns": definition.columns,
            }
        ],
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}", "annotations": {DIGEST: digest, **KEPT}},
        "spec": spec,
    }


def services() -> Definition:
    """Return the definition of ``InferenceService``."""
    return Definition(
        kind=KIND,
        plural=PLURAL,
        short_name="infsvc",
        description="A served model: batching proxy, runtime, route and replicas.",
        spec=InferenceServiceSpec,
        status=_STATUS,
        columns=_COLUMNS,
        conditions="Conditions of the service, with reason and remedy.",
        subresources=SCALE,
    )


def _root_schema(definition: Definition) -> Json:
    name = {"type": "string", "maxLength": definition.name_max_length, "pattern": NAME_PATTERN}
    return {
        "type": "object",
        "description": definition.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of the schema: `{API_VERSION}`."},
            "kind": {"type": "string", "description": f"Kind of the object: `{definition.kind}`."},
            # The name becomes the name of a Service and the value of a label, so it must be a DNS label. API servers
            # reject a description of metadata, and publish their own.
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": {"description": "Desired state.", **object_schema(definition.spec)},
            "status": {
                "type": "object",
                "description": "Observed state, written by the operator.",
                "properties": {
                    "observedGeneration": {
                        "type": "integer",
                        "format": "int64",
                        "description": "Generation of the spec that this status describes.",
                    },
                    **definition.status,
                    "conditions": {"description": definition.conditions, **_CONDITIONS},
                },
            },
        },
        **({"x-kubernetes-validations": [rule.schema(None) for rule in definition.rules]} if definition.rules else {}),
    }


def images_schema() -> Json:
    """Return the OpenAPI schema of the field ``images`` of a status."""
    return {
        "type": "object",
        "description": "The operator's images of the pods, if the spec names none.",
        "properties": {
            "proxy": {"type": "string", "description": "Image of the container `proxy`."},
            "runtime": {"type": "string", "description": "Image of the containers `runtime` and `model`."},
        },
    }


def upgrade_schema() -> Json:
    """Return the OpenAPI schema of the field ``upgrade`` of a status."""
    return {
        "type": "object",
        "description": "The running upgrade to other images or another pod template.",
        "required": ["since"],
        "properties": {
            "since": {"type": "string", "format": "date-time", "description": "Start of the upgrade."},
            "wasReady": {
                "type": "boolean",
                "description": "Whether the service was ready before. If so, no other upgrade starts meanwhile.",
            },
        },
    }


def rollout_schema() -> Json:
    """Return the OpenAPI schema of the field ``rollout`` of a status."""
    number: Json = {"type": "string"}  # Kubernetes objects have no floats
    count: Json = {"type": "integer", "format": "int64"}
    figures = {
        "rows": {**count, "description": "Rows that the candidate ran."},
        "disagreement": {**number, "description": "Largest share of rows of one output beyond the tolerance."},
        "output": {"type": "string", "description": "The output with that share."},
        "latencyRatio": {
            **number,
            "description": "Largest ratio of execution times to the stable revision's, for an equal number of rows.",
        },
        "errors": {**number, "description": "Share of the candidate's rows that failed."},
        "memoryBytes": {
            **count,
            "description": "Memory that the runtimes of a pod use: of the device, or else the peak of their processes.",
        },
        "stableMemoryBytes": {**count, "description": "The same, of the stable revision."},
        "startSeconds": {**count, "description": "Shortest time from the creation of a pod until it was ready."},
        "stableStartSeconds": {**count, "description": "The same, of the stable revision."},
    }
    return {
        "type": "object",
        "description": "The rollout with `rollout.strategy` Shadow or Canary.",
        "properties": {
            "phase": {
                "type": "string",
                "description": "`Stable`, `Waiting`, `Comparing`, `Paused`, `Promoting` or `Failed`.",
            },
            "stable": {"type": "string", "description": "Revision that serves all requests."},
            "candidate": {"type": "string", "description": "Revision that is compared with it, or that failed."},
            "step": {"type": "integer", "format": "int32", "description": "Number of the step, from 1."},
            "steps": {"type": "integer", "format": "int32", "description": "Number of steps of the rollout."},
            "since": {"type": "string", "format": "date-time", "description": "Start of the step."},
            "rowsBefore": {
                **count,
                "description": "Rows that the candidate had run at the start of the step.",
            },
            "servedBefore": {
                **count,
                "description": "Rows that the stable pods had run for clients at the start of the step.",
            },
            "droppedBefore": {
                **count,
                "description": "Batches and requests that were selected for the candidate and did not run there, at the"
                " start of the step.",
            },
            "weight": {"type": "integer", "format": "int32", "description": "Percentage of requests it serves."},
            "shadow": {"type": "integer", "format": "int32", "description": "Percentage of batches it runs again."},
            "terms": {"type": "string", "description": "Digest of the steps and tolerances."},
            "earlierCommand": {
                "type": "string",
                "description": "Command about another revision that the service had when the candidate appeared.",
            },
            "reason": {"type": "string", "description": "Reason of a failure."},
            "verdict": {"type": "string", "description": "The last comparison, or why the candidate failed."},
            "figures": {"type": "object", "description": "Figures of the verdict.", "properties": figures},
        },
    }


SERVED_STATUS: Json = {
    "replicas": {"type": "integer", "format": "int32", "description": "Number of existing pods."},
    "readyReplicas": {"type": "integer", "format": "int32", "description": "Number of ready pods."},
    "selector": {"type": "string", "description": "Label selector of the pods, for `kubectl scale` and an HPA."},
    "url": {"type": "string", "description": "URL of the service for clients."},
}
"""Status fields of a resource with replicas."""
_STATUS: Json = {
    **SERVED_STATUS,
    "model": {
        "type": "object",
        "description": "Version of a model with a moving name.",
        "properties": {
            "uri": {"type": "string", "description": "The moving name, from `spec.model.uri`."},
            "resolved": {"type": "string", "description": "The version that pods load."},
        },
    },
    "precision": {
        "type": "string",
        "description": "Precision that the runtimes of the newest pods chose by measurement. Several are separated"
        " by commas, the most common first.",
    },
    "images": images_schema(),
    "upgrade": upgrade_schema(),
    "rollout": rollout_schema(),
    "activator": {
        "type": "object",
        "description": "Activator of a service with `minReplicas` 0.",
        "properties": {
            "port": {
                "type": "integer",
                "format": "int32",
                "minimum": 1024,
                "maximum": 65535,
                "description": "Port of the activator for this service.",
            }
        },
    },
}
