"""ConfigMaps, Secrets and tokens that pods refer to, read from the API."""

from typing import Any

from shoal_local.api_client import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, ApiClient
from shoal_local.objects import Object

_RESOURCES = {r.plural: r for r in (CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS)}
ROOT_CERTIFICATE = "kube-root-ca.crt"
TOKEN_LIFETIME_S = 365 * 86400
"""A year: tokens are not renewed while a pod runs. A Kubernetes API server may shorten it."""


class ReferencedObjects:
    """A reader of the objects that pods refer to."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def objects_for(self, pod: Object) -> dict[tuple[str, str], Object | None]:
        """Return a pod's ConfigMaps and Secrets by plural and name; None: missing."""
        space = pod["metadata"]["namespace"]
        # Every pod mounts the certificate of the API server.
        named = {("configmaps", ROOT_CERTIFICATE), *_named_in(pod["spec"])}
        return {
            (plural, name): await self._client.find(_RESOURCES[plural], space, name) for plural, name in sorted(named)
        }

    async def token(self, pod: Object, source: Object) -> str:
        """Return a token for the pod's service account."""
        meta = {"name": pod["spec"].get("serviceAccountName") or "default", "namespace": pod["metadata"]["namespace"]}
        spec: Object = {"expirationSeconds": TOKEN_LIFETIME_S}
        if source.get("audience"):
            spec["audiences"] = [source["audience"]]
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": meta, "spec": spec}
        made = await self._client.create(SERVICE_ACCOUNTS, request, "token")
        return str(made["status"]["token"])


_NAMING = {
    "configMapKeyRef": ("configmaps", "name"),
    "configMap": ("configmaps", "name"),
    "secretKeyRef": ("secrets", "name"),
    "configMapRef": ("configmaps", "name"),
    "secretRef": ("secrets", "name"),
    "secret": ("secrets", "secretName"),
}
"""Maps a field of a pod's spec to the plural of the object that it names, and to the key of its name."""


def _named_in(part: Any) -> set[tuple[str, str]]:
    """Return plural and name of each ConfigMap and Secret anywhere in a part of a spec."""
    if isinstance(part, list):
        return set().union(*map(_named_in, part))
    if not isinstance(part, dict):
        return set()
    found = set().union(*map(_named_in, part.values()))
    for field, (plural, key) in _NAMING.items():
        reference = part.get(field)
        if isinstance(reference, dict) and (name := reference.get(key) or reference.get("name")):
            found.add((plural, name))
    return found
