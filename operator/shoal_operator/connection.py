"""How the operator reaches the API server: by a kubeconfig, or as a pod. The official client reads either.

Exec plugins, OIDC, token files, certificates and ``proxy-url`` are its business; what it got is handed to kopf as well,
which has a client of its own for the watches.
"""

import asyncio
import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

import kopf
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config
from requests.utils import get_environ_proxies

from shoal_operator.errors import ApiError
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_schema.environment import SettingsError

TOKEN = "BearerToken"
"""How the official client calls whatever goes into the header ``Authorization``."""
_CONNECTIONS = 64
_LOGIN_S = 60.0
_DEFAULT_KUBECONFIG = "~/.kube/config"


async def connect() -> ApiClient:
    """Return a client of the API server: of ``$KUBECONFIG`` or ``~/.kube/config`` if there is one, else of the pod.

    Reads everything anew at each call, and runs the plugin again, since credentials expire.

    Raises:
        SettingsError: there is neither, or it cannot be used.
        ApiError: a plugin or an issuer of tokens did not answer.
    """
    # Else the session would take a proxy from the environment even for this machine itself, and passwords from .netrc,
    # and ask a thread for both at each request, which doubles what one costs.
    configuration = Configuration(connection_pool_maxsize=_CONNECTIONS, client_session_kwargs={"trust_env": False})
    try:
        async with asyncio.timeout(_LOGIN_S):
            if paths := _kubeconfigs():
                await load_kube_config(config_file=paths, client_configuration=configuration, persist_config=False)
            elif "KUBERNETES_SERVICE_HOST" in os.environ:
                load_incluster_config(configuration)
            else:
                raise SettingsError(
                    "no API server to talk to: run in a pod with a service account, or give --kubeconfig FILE"
                )
            url = urlsplit(configuration.host)
            try:
                local = url.hostname == "localhost" or ipaddress.ip_address(url.hostname or "").is_loopback
            except ValueError:  # a name
                local = False
            configuration.proxy = configuration.proxy or (
                None if local else get_environ_proxies(configuration.host).get(url.scheme)
            )
            if configuration.tls_server_name:
                # kopf has no place for it, so the watches would fail for ever.
                raise SettingsError(
                    "the kubeconfig's tls-server-name cannot be used: give a server whose certificate has its own name"
                )
            if configuration.proxy and urlsplit(configuration.proxy).scheme not in ("http", "https"):
                raise SettingsError(f"the proxy {configuration.proxy} cannot be used: it must be http:// or https://")
        client = ApiClient(configuration)
    except TimeoutError:
        raise ApiError(0, f"no credentials within {_LOGIN_S:.0f} s: does the kubeconfig's plugin hang?") from None
    except SettingsError:
        raise
    except Exception as error:  # whatever the client makes of a file that somebody edited
        raise SettingsError(f"the kubeconfig cannot be used: {error}") from error
    client.user_agent = FIELD_MANAGER
    return client


async def log_in() -> kopf.ConnectionInfo:
    """Return the same address and credentials for kopf's own client.

    Raises:
        SettingsError: as `connect`.
    """
    client = await connect()
    try:
        header = await client.configuration.get_api_key_with_prefix(TOKEN) or ""
        scheme, _, token = header.partition(" ")
        return kopf.ConnectionInfo(
            server=client.configuration.host,
            ca_path=client.configuration.ssl_ca_cert,
            insecure=not client.configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_data=_pem(client.configuration.cert_file),
            private_key_data=_pem(client.configuration.key_file),
            proxy_url=client.configuration.proxy,
        )
    finally:
        await client.close()


def _kubeconfigs() -> str:
    """Return the files' names, joined as in ``$KUBECONFIG``; empty where there is none."""
    named = os.environ.get("KUBECONFIG", "")
    names = named or _DEFAULT_KUBECONFIG
    if any(Path(name).expanduser().exists() for name in names.split(os.pathsep) if name):
        return names
    if named:
        raise SettingsError(f"the kubeconfig cannot be used: {named} does not exist")
    return ""


def _pem(path: str | None) -> str | None:
    """Return what a file holds: kopf would take one that was renewed in its place for the one that was refused."""
    if path is None:
        return None
    text = Path(path).read_text()
    return text[max(0, text.find("-----BEGIN ")) :]
