"""Kubeconfigs and service accounts, from the file to the request that a server sees."""

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, incluster_config

from shoal_operator.cluster.api_server import ApiServer
from shoal_operator.cluster.connection import TOKEN, connect, log_in
from shoal_operator.errors import ApiError
from shoal_schema.fields.declaring import Json
from shoal_schema.process.environment import SettingsError
from tests.operator.certificates import make_certificate, server_context
from tests.operator.servers import Asked, serving

PATH = "/version"


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the environment of the user who runs the tests."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


class Kubeconfig:
    """A file that can be written anew."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kubeconfig"

    def write(self, server: str, user: Json, **cluster: Any) -> None:
        """Write one context."""
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.path.write_text(yaml.safe_dump(body))


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubeconfig:
    """Have the operator read a kubeconfig."""
    made = Kubeconfig(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(made.path))
    return made


def plugin(folder: Path, status: str) -> Json:
    """Return a user whose plugin prints a status; ``{run}`` in it counts its runs."""
    code = f"""
import json, pathlib
runs = pathlib.Path({str(folder / "runs")!r})
run = int(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text(str(run))
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {status}}}))
"""
    script = folder / "plugin.py"
    script.write_text(code)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(script)]}
    return {"exec": {**command, "interactiveMode": "Never"}}


def only(token: Callable[[], str]) -> Callable[[Asked], tuple[int, Json]]:
    """Return a server that takes one token, whichever that is by then."""

    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.token.lower() == f"bearer {token()}":
            return 200, {"took": token()}
        return 401, {"message": "no"}

    return answer


async def ask(server: ApiServer | None = None) -> Json:
    asking = server or ApiServer(connect)
    try:
        return await asking.request("GET", PATH)
    finally:
        if server is None:
            await asking.close()


def test_a_plugin_is_run_for_a_token_and_again_when_that_has_expired(kubeconfig: Kubeconfig, tmp_path: Path) -> None:
    wanted = "token-1"

    async def main() -> list[str]:
        nonlocal wanted
        async with serving(only(lambda: wanted)) as (port, asked):
            kubeconfig.write(f"http://127.0.0.1:{port}", plugin(tmp_path, '{"token": f"token-{run}"}'))
            server = ApiServer(connect)
            await ask(server)
            await ask(server)
            wanted = "token-2"
            await asyncio.gather(ask(server), ask(server), ask(server))
            await server.close()
            return [each.token for each in asked]

    tokens = asyncio.run(main())

    assert (tmp_path / "runs").read_text() == "2", "it is run once for all requests that found the token expired"
    assert tokens[:2] == ["Bearer token-1"] * 2
    assert sorted(tokens[2:])[-3:] == ["Bearer token-2"] * 3


def test_slow_plugin_is_not_started_again() -> None:
    begun, port, go = 0, 0, asyncio.Event()

    async def slow() -> ApiClient:
        nonlocal begun
        begun += 1
        await go.wait()
        return ApiClient(Configuration(host=f"http://127.0.0.1:{port}", api_key={TOKEN: "Bearer t"}))

    async def main() -> Json:
        nonlocal port
        async with serving(only(lambda: "t")) as (port, _):
            server = ApiServer(slow)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await ask(server)
            first, second = asyncio.create_task(ask(server)), asyncio.create_task(ask(server))
            await asyncio.sleep(0)
            first.cancel()
            go.set()
            reported = await second
            await server.close()
            return reported

    assert asyncio.run(main()) == {"took": "t"}
    assert begun == 1


def test_the_watches_get_a_plugins_token_and_certificate_too(kubeconfig: Kubeconfig, tmp_path: Path) -> None:
    kubeconfig.write("https://127.0.0.1:1", plugin(tmp_path, '{"token": "t"}'), **{"insecure-skip-tls-verify": True})
    by_token = asyncio.run(log_in())
    assert by_token.as_http_headers() == {"Authorization": "Bearer t"}
    assert by_token.insecure

    certificate, key = make_certificate(tmp_path)
    pair = {"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()}
    kubeconfig.write("https://127.0.0.1:1", plugin(tmp_path, repr(pair)))
    by_certificate = asyncio.run(log_in())
    assert by_certificate.as_http_headers() == {}
    assert by_certificate.certificate_data == certificate.read_text()
    assert isinstance(by_certificate.as_ssl_context(), ssl.SSLContext)


def test_a_plugin_that_fails_says_why_in_the_log(
    kubeconfig: Kubeconfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(only(lambda: "any")) as (port, _):
            kubeconfig.write(f"http://127.0.0.1:{port}", plugin(tmp_path, 'exit("run `login` first")'))
            with pytest.raises(ApiError, match=r"401: no\. New credentials"):
                await ask()

    asyncio.run(main())

    assert "run `login` first" in caplog.text


def test_a_token_file_that_was_renewed_is_read_anew(kubeconfig: Kubeconfig, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def main() -> list[str]:
        async with serving(only(token.read_text)) as (port, asked):
            kubeconfig.write(f"http://127.0.0.1:{port}", {"tokenFile": "token"})
            server = ApiServer(connect)
            await ask(server)
            token.write_text("new")
            await ask(server)
            await server.close()
            return [each.token for each in asked]

    assert asyncio.run(main()) == ["Bearer old", "Bearer old", "Bearer new"]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the token's file and the certificate's of a pod; its environment has no port of the API server."""
    token, (certificate, _) = tmp_path / "token", make_certificate(tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    return token, certificate


def test_a_service_accounts_token_that_was_rotated_is_read_anew_by_requests_and_watches(
    pod: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, certificate = pod
    token.write_text("old")

    async def main() -> tuple[list[str], Json]:
        tls = server_context(certificate, certificate.with_suffix(".key"))
        async with serving(only(token.read_text), tls) as (port, asked):
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            server = ApiServer(connect)
            await ask(server)
            token.write_text("new")
            reported = await ask(server)
            await server.close()
            return [each.token for each in asked], reported

    tokens, reported = asyncio.run(main())

    assert reported == {"took": "new"}
    assert (tokens[0], tokens[-1]) == ("bearer old", "bearer new")
    info = asyncio.run(log_in())
    assert (info.scheme, info.token) == ("bearer", "new")
    assert info.server.startswith("https://127.0.0.1:")
    assert info.ca_path == str(certificate)


def test_a_token_that_cannot_be_read_for_a_moment_is_an_outage_and_not_the_end() -> None:
    def refresh(_: Configuration) -> None:
        raise ConfigException("Token file exists but empty.")

    async def main() -> None:
        async def emptied() -> ApiClient:
            configuration = Configuration(host="http://127.0.0.1:1", api_key={TOKEN: "old"})
            configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]
            return ApiClient(configuration)

        with pytest.raises(ApiError, match="the credentials cannot be read: Token file exists but empty") as caught:
            await ask(ApiServer(emptied))
        assert caught.value.is_transient

    asyncio.run(main())


@pytest.mark.parametrize(
    ("expired", "named", "words"),
    [
        (True, True, "certificate has expired. Renew it"),
        (False, False, "self-signed certificate. Renew it, or correct"),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_reported_in_a_sentence(
    kubeconfig: Kubeconfig, tmp_path: Path, expired: bool, named: bool, words: str
) -> None:
    certificate, key = make_certificate(tmp_path, expired=expired)

    async def main() -> None:
        async with serving(only(lambda: "t"), server_context(certificate, key)) as (port, _):
            authority = {"certificate-authority": certificate.name} if named else {}
            kubeconfig.write(f"https://127.0.0.1:{port}", {"token": "t"}, **authority)
            with pytest.raises(ApiError, match=f"API server's certificate is not trusted: {words}") as caught:
                await ask()
            assert caught.value.is_transient

    asyncio.run(main())


def test_a_proxy_that_the_kubeconfig_names_carries_requests_and_watches(kubeconfig: Kubeconfig) -> None:
    async def main() -> tuple[Json, str | None, list[Asked], int]:
        async with serving(only(lambda: "t")) as (port, asked):
            proxy = f"http://127.0.0.1:{port}"
            kubeconfig.write("http://api.invalid", {"token": "t"}, **{"proxy-url": proxy})
            return await ask(), (await log_in()).proxy_url, asked, port

    reported, proxy, asked, port = asyncio.run(main())

    assert reported == {"took": "t"}
    assert [each.host for each in asked] == ["api.invalid"]
    assert proxy == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://api.example:6443", "http://proxy.example:3128"),
        ("https://10.96.0.1:443", None),
        ("https://api.inside.example", None),
        ("https://127.0.0.1:6443", None),
        ("https://[::1]:6443", None),
        ("https://localhost:6443", None),
    ],
)
def test_the_environments_proxy_is_taken_as_kubectl_takes_it(
    kubeconfig: Kubeconfig, monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.inside.example")
    kubeconfig.write(server, {"token": "t"})

    assert asyncio.run(log_in()).proxy_url == proxy


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        ({"token": "t"}, {"tls-server-name": "api"}, "tls-server-name"),
        ({"token": "t"}, {"proxy-url": "socks5://127.0.0.1:1"}, "expected http:// or https://"),
        ({"token": "t"}, {"certificate-authority": "missing"}, "invalid kubeconfig: File does not exists"),
        ({"tokenFile": "missing"}, {}, "invalid kubeconfig: .*missing"),
    ],
)
def test_unusable_credentials_are_reported_before_any_request(
    kubeconfig: Kubeconfig, user: Json, cluster: Json, words: str
) -> None:
    kubeconfig.write("https://127.0.0.1:1", user, **cluster)

    for way in (connect, log_in):
        _refused(way, words)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "contexts: 1", "current-context: x"])
def test_a_file_that_is_no_kubeconfig_is_reported(kubeconfig: Kubeconfig, text: str) -> None:
    kubeconfig.path.write_text(text)

    _refused(connect, "invalid kubeconfig: ")


def test_a_missing_kubeconfig_is_reported_by_its_name(kubeconfig: Kubeconfig) -> None:
    _refused(connect, f"{kubeconfig.path} does not exist")


def test_neither_a_kubeconfig_nor_a_pod_is_reported() -> None:
    _refused(connect, "Run in a pod with a service account, or set --kubeconfig FILE")


def _refused(way: Callable[[], Awaitable[object]], words: str) -> None:
    async def main() -> None:
        with pytest.raises(SettingsError, match=words):
            await way()

    asyncio.run(main())
