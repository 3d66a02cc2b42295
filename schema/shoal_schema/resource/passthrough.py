"""Kubernetes types that the spec passes through to pods.

Small types are declared in full. Large types (affinity, security contexts) are open objects: the API server validates
them strictly when the Deployment is applied, and its error becomes the condition's message.
"""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from shoal_schema.fields.declaring import KIB, Json
from shoal_schema.fields.quantities import Quantity

HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z"
"""The pattern of a header's name (RFC 9110, a token)."""
SET: Json = {"x-kubernetes-list-type": "set"}
"""Elements are unique and unordered."""
BY_NAME: Json = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Elements are keyed by name; server-side apply merges the list as a map."""

Text = Annotated[str, Meta(max_length=1024)]
NO_NUL = r"^[^\x00]*$"
"""The pattern of arguments and variables, which NUL terminates."""
Value = Annotated[str, Meta(max_length=120 * KIB, pattern=NO_NUL)]
"""Value of a variable. Linux starts no process with a variable of more than 128 KiB, its name included."""
Argument = Annotated[str, Meta(max_length=4096, pattern=NO_NUL)]
StringMap = dict[str, Text]
OPEN: Json = {"x-kubernetes-preserve-unknown-fields": True}
OpenObject = Annotated[dict[str, Any], Meta(extra_json_schema=OPEN)]
# Schemas of the parts of open objects that CEL rules read.
_NAME: Json = {"type": "string", "maxLength": 63}
_PORT: Json = {
    **OPEN,
    "type": "object",
    "properties": {"containerPort": {"type": "integer", "description": "The port that the container listens on."}},
}
_PORTS: Json = {
    "type": "array",
    "description": "Ports of the container, as in a pod; 8080 and 9090 are the proxy's.",
    "maxItems": 16,
    "items": _PORT,
}
# Names and paths of the operator's own containers, volumes and mounts.
OWN_CONTAINERS = ("proxy", "runtime", "model", "batch")
PROXY_PORTS = (8080, 9090)
OWN_VOLUMES = ("run", "cache", "shm", "tmp", "model", "tls", "client-ca", "api-keys", "webhook-keys", "ca-bundle")
OWN_PATHS = r"^/*((run|dev|tmp|var|var/+cache)?/*|(run/+shoal|dev/+shm|var/+cache/+shoal)(/.*)?|(.*/)?[.][.](/.*)?)$"
"""Mount paths that would hide the operator's own mounts in the runtime's containers."""
PROXY_PATHS = r"^/*((run|etc|tmp|var|var/+run)?/*|(run/+shoal|etc/+shoal|var/+run/+shoal)(/.*)?|(.*/)?[.][.](/.*)?)$"
"""Mount paths that would hide the operator's own mounts in the proxy's container."""
HIDES_OURS_IN_PROXY = (
    "must not be or contain /run/shoal, /etc/shoal, /var/run/shoal or /tmp, where the operator mounts"
    " the proxy's files, and must not have a .. in it"
)
HIDES_OURS = (
    "must not be or contain /run/shoal, /dev/shm, /tmp or /var/cache/shoal, where the operator mounts"
    " the containers' files, and must not have a .. in it"
)


class PassedThrough(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Kubernetes object; undeclared fields are dropped, as by the API server."""


class Claim(PassedThrough, frozen=True):
    """An element of ``resources.claims``."""

    name: Annotated[Text, Meta(description="Name of an element of the pod's `resourceClaims`.")]
    request: (
        Annotated[Text, Meta(description="One request of that claim. Default: all devices of the claim.")] | None
    ) = None


class Resources(PassedThrough, frozen=True):
    """Requests and limits of a container."""

    limits: Annotated[
        dict[str, Quantity],
        Meta(description="Upper limit of each resource: `cpu`, `memory`, a GPU."),
    ] = field(default_factory=dict)
    requests: Annotated[
        dict[str, Quantity],
        Meta(description="Amount of each resource that a node must have free. Default: the limit, if there is one."),
    ] = field(default_factory=dict)
    claims: Annotated[
        tuple[Claim, ...],
        Meta(
            max_length=16,
            extra_json_schema=BY_NAME,
            description="Devices of the pod's `resourceClaims` that the container uses.",
        ),
    ] = ()


class EnvironmentVariable(PassedThrough, frozen=True):
    """An element of a container's ``env``."""

    name: Annotated[Text, Meta(description="Name of the variable.")]
    value: (
        Annotated[
            Value, Meta(description="Value of the variable; `$(NAME)` is replaced by the value of that variable.")
        ]
        | None
    ) = None
    value_from: (
        Annotated[
            OpenObject,
            Meta(
                description="Source of the value, as in a container: a key of a Secret or ConfigMap, or a field of the"
                " pod."
            ),
        ]
        | None
    ) = None


class ResourceClaim(PassedThrough, frozen=True):
    """An element of a pod's ``resourceClaims``."""

    name: Annotated[Text, Meta(description="Name of the claim in `resources.claims`.")]
    resource_claim_name: (
        Annotated[Text, Meta(description="A ResourceClaim of the namespace, shared by all pods.")] | None
    ) = None
    resource_claim_template_name: (
        Annotated[
            Text,
            Meta(description="A ResourceClaimTemplate of the namespace, from which each pod gets its own claim."),
        ]
        | None
    ) = None


class Secret(PassedThrough, frozen=True):
    """An element of a pod's ``imagePullSecrets``."""

    name: Annotated[Text, Meta(description="A Secret of the namespace with credentials of a registry.")]


class Toleration(PassedThrough, frozen=True):
    """An element of a pod's ``tolerations``."""

    key: Annotated[Text, Meta(description="Key of the taint. Default: every key, with `operator: Exists`.")] | None = (
        None
    )
    operator: (
        Annotated[Text, Meta(description="`Equal` compares the taint's value, `Exists` accepts any. Default: `Equal`.")]
        | None
    ) = None
    value: Annotated[Text, Meta(description="Value of the taint, with `operator: Equal`.")] | None = None
    effect: (
        Annotated[
            Text,
            Meta(
                description="Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Default: every"
                " effect."
            ),
        ]
        | None
    ) = None
    toleration_seconds: (
        Annotated[
            int,
            Meta(
                ge=-(2**63),
                le=2**63 - 1,
                description="With `NoExecute`: how long a running pod may stay on a node with the taint. Default:"
                " no limit.",
            ),
        ]
        | None
    ) = None


class ImagePullPolicy(StrEnum):
    """When a node pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


def _named(meaning: str, **properties: Json) -> Meta:
    """Return the schema of an open object with a required name and some typed properties.

    Args:
        meaning: description of the field ``name``.
        properties: schemas of the other typed fields.
    """
    name = {**_NAME, "description": meaning}
    return Meta(extra_json_schema={**OPEN, "properties": {"name": name, **properties}, "required": ["name"]})


# Lists of objects, as fields of pods and containers.
Volumes = Annotated[
    tuple[Annotated[dict[str, Any], _named("Name of the volume in `volumeMounts`.")], ...],
    Meta(max_length=32, extra_json_schema=BY_NAME),
]
Containers = Annotated[
    tuple[Annotated[dict[str, Any], _named("Name of the container, unique in the pod.", ports=_PORTS)], ...],
    Meta(max_length=8, extra_json_schema=BY_NAME),
]
_MOUNT_PATH: Json = {
    "type": "string",
    "description": "Path of the volume in the container.",
    "maxLength": 256,
}
VolumeMounts = Annotated[
    tuple[Annotated[dict[str, Any], _named("Name of a volume of `pod.volumes`.", mountPath=_MOUNT_PATH)], ...],
    Meta(max_length=32),
]
EnvironmentVariables = Annotated[tuple[EnvironmentVariable, ...], Meta(max_length=64, extra_json_schema=BY_NAME)]
ResourceClaims = Annotated[tuple[ResourceClaim, ...], Meta(max_length=16, extra_json_schema=BY_NAME)]
PullSecrets = Annotated[tuple[Secret, ...], Meta(max_length=16, extra_json_schema=BY_NAME)]
Tolerations = Annotated[tuple[Toleration, ...], Meta(max_length=32)]


def object_name(description: str) -> Meta:
    """Return the constraints of a field that names a Secret or a ConfigMap."""
    return Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z", max_length=253, description=description)


PULL_POLICY = Meta(
    description="When a node pulls the image. Default: `Always` for the tag `latest`, else `IfNotPresent`."
)
SECURITY_CONTEXT = Meta(
    description="Security context of the container; its fields replace those of the restricted default."
)
