"""Connection to the API server by a kubeconfig or a service account.

The official client handles exec plugins, OIDC, token files, certificates and ``proxy-url``. kopf has its own client for
the watches and uses the same credentials.
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
from shoal_schema.process.environment import SettingsError

TOKEN = "BearerToken"
"""The official client's name for the header ``Authorization``."""
_CONNECTIONS = 64
_LOGIN_S = 60.0
_DEFAULT_KUBECONFIG = "~/.kube/config"


async def connect() -> ApiClient:
    """Return a client, configured by a kubeconfig or the service account.

    The kubeconfig is ``$KUBECONFIG``, else ``~/.kube/config``. Credentials expire, so each call
    reads the files and runs exec plugins again.

    Raises:
        SettingsError: no kubeconfig or service account exists, or the kubeconfig is invalid.
        ApiError: an exec plugin or token issuer did not respond.
    """
    # With trust_env the session would use a proxy for localhost too and read passwords from .netrc, and look both up
    # in a thread at each request, which doubles its cost.
    configuration = Configuration(connection_pool_maxsize=_CONNECTIONS, client_session_kwargs={"trust_env": False})
    try:
        async with asyncio.timeout(_LOGIN_S):
            if paths := _kubeconfigs():
                await load_kube_config(config_file=paths, client_configuration=configuration, persist_config=False)
            elif "KUBERNETES_SERVICE_HOST" in os.environ:
                load_incluster_config(configuration)
            else:
                raise SettingsError(
                    "no API server is configured. Run in a pod with a service account, or set --kubeconfig FILE"
                )
            # HTTPS_PROXY and NO_PROXY apply as in kubectl: never to this machine itself.
            url = urlsplit(configuration.host)
            try:
                local = url.hostname == "localhost" or ipaddress.ip_address(url.hostname or "").is_loopback
            except ValueError:  # a hostname
                local = False
            configuration.proxy = configuration.proxy or (
                None if local else get_environ_proxies(configuration.host).get(url.scheme)
            )
            if configuration.tls_server_name:
                # kopf does not support it, so every watch would fail.
                raise SettingsError(
                    "the kubeconfig sets tls-server-name, which is not supported. Set a server whose certificate has"
                    " its own name"
                )
            if configuration.proxy and urlsplit(configuration.proxy).scheme not in ("http", "https"):
                raise SettingsError(f"proxy URL {configuration.proxy} is not supported: expected http:// or https://")
        client = ApiClient(configuration)
    except TimeoutError:
        text = f"no credentials within {_LOGIN_S:.0f} s. Check whether the kubeconfig's exec plugin hangs"
        raise ApiError(0, text) from None
    except SettingsError:
        raise
    except Exception as error:  # the client raises many types for an invalid file
        raise SettingsError(f"invalid kubeconfig: {error}") from error
    client.user_agent = FIELD_MANAGER
    return client


async def log_in() -> kopf.ConnectionInfo:
    """Return the API server's address and credentials for kopf's client.

    Raises:
        SettingsError: as `connect`.
    """
    client = await connect()
    try:
        # kopf has separate arguments for scheme and token.
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
    """Return the paths of kubeconfigs, separated as in ``$KUBECONFIG``.

    Returns: The value of ``$KUBECONFIG``, else the default path; empty if the default does not exist.

    Raises:
        SettingsError: none of the paths in ``$KUBECONFIG`` exists.
    """
    named = os.environ.get("KUBECONFIG", "")
    names = named or _DEFAULT_KUBECONFIG
    if any(Path(name).expanduser().exists() for name in names.split(os.pathsep) if name):
        return names
    if named:
        raise SettingsError(f"invalid kubeconfig: {named} does not exist")
    return ""


def _pem(path: str | None) -> str | None:
    """Return a file's content instead of its path, so that kopf detects a renewed certificate."""
    if path is None:
        return None
    text = Path(path).read_text()
    return text[max(0, text.find("-----BEGIN ")) :]
