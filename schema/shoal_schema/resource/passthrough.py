"""What the spec hands to Kubernetes as it is.

Short lists of names that nobody mistypes twice are spelled out. Deep trees (affinity, security contexts) are open
objects here: the API server checks them strictly when the Deployment is applied, and its answer becomes the
condition's message.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from shoal_schema.declaring import KIB, Json
from shoal_schema.quantities import Quantity

HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z"
"""The pattern of a header's name (RFC 9110, a token)."""
SECRET_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z"
"""The pattern of a Secret's name."""
SET: Json = {"x-kubernetes-list-type": "set"}
"""Elements are unique and their order says nothing."""
BY_NAME: Json = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Elements are told apart by their name; server-side apply merges the list as a map."""

Text = Annotated[str, Meta(max_length=1024)]
NO_NUL = r"^[^\x00]*$"
"""The pattern of what a process is handed: NUL ends each argument and variable."""
Value = Annotated[str, Meta(max_length=120 * KIB, pattern=NO_NUL)]
"""Of a variable. Linux takes 128 KiB of one, its name included, and starts no process that has more."""
Argument = Annotated[str, Meta(max_length=4096, pattern=NO_NUL)]
StringMap = dict[str, Text]
OpenObject = Annotated[dict[str, Any], Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})]


class PassedThrough(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of Kubernetes; what is not named here is left out, as the API server leaves it out."""


class Claim(PassedThrough, frozen=True):
    """An element of ``resources.claims``."""

    name: Text
    request: Text | None = None


class Resources(PassedThrough, frozen=True):
    """Requests and limits of a container."""

    limits: dict[str, Quantity] = field(default_factory=dict)
    requests: dict[str, Quantity] = field(default_factory=dict)
    claims: Annotated[tuple[Claim, ...], Meta(max_length=16, extra_json_schema=BY_NAME)] = ()


class EnvironmentVariable(PassedThrough, frozen=True):
    """An element of a container's ``env``."""

    name: Text
    value: Value | None = None
    value_from: OpenObject | None = None


class ResourceClaim(PassedThrough, frozen=True):
    """An element of a pod's ``resourceClaims``."""

    name: Text
    resource_claim_name: Text | None = None
    resource_claim_template_name: Text | None = None


class Secret(PassedThrough, frozen=True):
    """An element of a pod's ``imagePullSecrets``."""

    name: Text


class Toleration(PassedThrough, frozen=True):
    """An element of a pod's ``tolerations``."""

    key: Text | None = None
    operator: Text | None = None
    value: Text | None = None
    effect: Text | None = None
    toleration_seconds: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


EnvironmentVariables = Annotated[tuple[EnvironmentVariable, ...], Meta(max_length=64, extra_json_schema=BY_NAME)]
ResourceClaims = Annotated[tuple[ResourceClaim, ...], Meta(max_length=16, extra_json_schema=BY_NAME)]
PullSecrets = Annotated[tuple[Secret, ...], Meta(max_length=16, extra_json_schema=BY_NAME)]
Tolerations = Annotated[tuple[Toleration, ...], Meta(max_length=32)]
