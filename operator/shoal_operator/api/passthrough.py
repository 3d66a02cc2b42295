"""OpenAPI schemas of what the spec hands to Kubernetes unchanged.

Short lists of names that nobody mistypes twice are spelled out. Deep trees (affinity, security
contexts) are open objects here: the API server checks them strictly when the Deployment is applied,
and its answer becomes the condition's message.
"""

from shoal_operator.api.fields import Json
from shoal_operator.api.quantities import PATTERN

QUANTITY: Json = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": PATTERN,
}
OPEN_OBJECT: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
STRING: Json = {"type": "string", "maxLength": 1024}
STRING_MAP: Json = {"type": "object", "additionalProperties": STRING}


def open_list(max_items: int) -> Json:
    """Return a list of open objects."""
    return {"type": "array", "maxItems": max_items, "items": OPEN_OBJECT}


def named_list(max_items: int, properties: Json) -> Json:
    """Return a list whose elements are told apart by ``name``."""
    items = {"type": "object", "required": ["name"], "properties": {"name": STRING, **properties}}
    return {
        "type": "array",
        "maxItems": max_items,
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }


RESOURCES: Json = {
    "type": "object",
    "properties": {
        "limits": {"type": "object", "additionalProperties": QUANTITY},
        "requests": {"type": "object", "additionalProperties": QUANTITY},
        "claims": named_list(16, {"request": STRING}),
    },
}
ENV: Json = named_list(64, {"value": {"type": "string"}, "valueFrom": OPEN_OBJECT})
RESOURCE_CLAIMS: Json = named_list(16, {"resourceClaimName": STRING, "resourceClaimTemplateName": STRING})
PULL_SECRETS: Json = named_list(16, {})
TOLERATIONS: Json = {
    "type": "array",
    "maxItems": 32,
    "items": {
        "type": "object",
        "properties": {
            "key": STRING,
            "operator": STRING,
            "value": STRING,
            "effect": STRING,
            "tolerationSeconds": {"type": "integer", "format": "int64"},
        },
    },
}
