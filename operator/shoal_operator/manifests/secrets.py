"""Certificates and keys of pods: volumes from Secrets and ConfigMaps, with their mounts and variables."""

from shoal_operator.manifests.environment import (
    CA_DIR,
    CA_FILE,
    CLIENT_CA_DIR,
    KEYS_DIR,
    TLS_DIR,
    WEBHOOK_KEYS_DIR,
    variable,
)
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.service import InferenceServiceSpec

API_KEYS = "api-keys"
"""The volume with the clients' API keys."""
WEBHOOK_KEYS = "webhook-keys"
"""The volume with the keys that sign webhooks."""
TLS, CLIENT_CA = "tls", "client-ca"
"""The volumes of the proxy's certificate and of the clients' CA."""
CA_BUNDLE = "ca-bundle"
_READ_ONLY = 0o444


def keys_secret(spec: InferenceServiceSpec) -> str | None:
    """Return the name of the Secret with the clients' API keys, or None."""
    return spec.access.api_keys.secret_name if spec.access and spec.access.api_keys else None


def webhook_secret(target: Target) -> str | None:
    """Return the name of the Secret with the keys that sign webhooks, or None."""
    asynchronous = target.asynchronous
    return asynchronous.webhooks.secret_name if asynchronous and asynchronous.webhooks else None


def secret_volumes(target: Target) -> list[Json]:
    """Return the volumes of the proxy's certificate and keys; the kubelet updates them."""
    tls = target.spec.tls
    secrets = {TLS: tls.secret_name, CLIENT_CA: tls.client_ca_secret_name} if tls else {}
    certificates: list[Json] = [
        {"name": name, "secret": {"secretName": secret, "defaultMode": _READ_ONLY}}
        for name, secret in secrets.items()
        if secret
    ]
    # Required: without the keys a proxy would admit no client, so the pod waits for the Secret.
    keys = {API_KEYS: keys_secret(target.spec), WEBHOOK_KEYS: webhook_secret(target)}
    return [
        *certificates,
        *({"name": name, "secret": {"secretName": secret}} for name, secret in keys.items() if secret),
    ]


def secret_mounts(target: Target) -> list[Json]:
    """Return the mounts of `secret_volumes` in the proxy's container."""
    paths = {TLS: TLS_DIR, CLIENT_CA: CLIENT_CA_DIR, API_KEYS: KEYS_DIR, WEBHOOK_KEYS: WEBHOOK_KEYS_DIR}
    return [_read_only_mount(each["name"], paths[each["name"]]) for each in secret_volumes(target)]


def secret_variables(target: Target) -> list[Json]:
    """Return the proxy's variables with the paths of `secret_volumes`."""
    files = {
        TLS: {
            "SHOAL_PROXY_TLS_CERTIFICATE": f"{TLS_DIR}/tls.crt",
            "SHOAL_PROXY_TLS_KEY": f"{TLS_DIR}/tls.key",
        },
        CLIENT_CA: {"SHOAL_PROXY_TLS_CLIENT_CA": f"{CLIENT_CA_DIR}/ca.crt"},
        API_KEYS: {"SHOAL_PROXY_API_KEYS": KEYS_DIR},
        WEBHOOK_KEYS: {"SHOAL_PROXY_WEBHOOK_KEYS": WEBHOOK_KEYS_DIR},
    }
    return [variable(*each) for volume in secret_volumes(target) for each in files[volume["name"]].items()]


def ca_volume(target: Target) -> list[Json]:
    """Return the volume of certificate authorities to trust for downloads."""
    bundle = target.spec.model.ca_bundle
    if bundle is None or not (target.downloads or target.batch):
        return []
    shared = {"items": [{"key": bundle.key, "path": CA_FILE}], "defaultMode": _READ_ONLY}
    if bundle.secret_name:
        return [{"name": CA_BUNDLE, "secret": {"secretName": bundle.secret_name, **shared}}]
    return [{"name": CA_BUNDLE, "configMap": {"name": bundle.config_map_name, **shared}}]


def ca_variables(target: Target) -> list[Json]:
    """Return the variable with the path of `ca_volume`, if there is one."""
    return [variable("SHOAL_MODEL_CA_BUNDLE", f"{CA_DIR}/{CA_FILE}")] if ca_volume(target) else []


def ca_mounts(target: Target) -> list[Json]:
    """Return the mount of `ca_volume`, if there is one."""
    return [_read_only_mount(CA_BUNDLE, CA_DIR)] if ca_volume(target) else []


def _read_only_mount(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path, "readOnly": True}
