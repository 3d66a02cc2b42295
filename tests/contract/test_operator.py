"""The operator's side: the pods' environment, read by the processes; the proxy's load, read by the operator."""

import asyncio

import pytest

from shoal_operator.manifests.containers import make_model, make_proxy, make_runtime
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.scraper import Scraper
from shoal_operator.scaling.service_cache import Replica
from shoal_proxy.server import Proxy
from shoal_proxy.settings import Settings as ProxySettings
from shoal_runtime.settings import Settings as RuntimeSettings
from shoal_schema.fields.declaring import Json
from tests.operator.samples import DOWNLOADED, EVERYTHING, FOREIGN, MINIMAL, target


def environment(container: Json) -> dict[str, str]:
    """Return the variables as the kubelet gives them."""
    values = {entry["name"]: entry.get("value", "10.0.0.1") for entry in container["env"]}
    return {name: value.replace("$(POD_IP)", "10.0.0.1") for name, value in values.items()}


@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING, DOWNLOADED, FOREIGN])
def test_a_proxy_starts_with_what_the_operator_renders(spec: Json) -> None:
    settings = ProxySettings.from_env(environment(make_proxy(target(spec))))

    assert settings.process.listen.port == 8080
    assert settings.process.admin_listen.port == 9090


@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING, DOWNLOADED])
def test_a_runtime_starts_with_what_the_operator_renders(spec: Json) -> None:
    settings = RuntimeSettings.from_env(environment(make_runtime(target(spec))))

    assert settings.uri == spec["model"]["uri"]


def test_the_init_container_is_given_all_that_a_runtime_requires() -> None:
    settings = RuntimeSettings.from_env(environment(make_model(target(DOWNLOADED))))

    assert str(settings.cache_dir) == "/var/cache/shoal/models"
    assert settings.model.checksum == DOWNLOADED["model"]["checksum"]


def test_the_operator_accepts_load_only_from_the_pod_that_it_scrapes() -> None:
    async def main() -> list[Reading]:
        loopback = dict.fromkeys(("SHOAL_PROXY_LISTEN", "SHOAL_PROXY_ADMIN_LISTEN"), "127.0.0.1:0")
        proxy = Proxy(
            ProxySettings.from_env({**loopback, "SHOAL_PROXY_INSTANCE": "uid-1", "SHOAL_PROXY_DRAIN_DELAY_S": "0"})
        )
        running = asyncio.ensure_future(proxy.run())
        scraper = Scraper(proxy.admin_socket.getsockname()[1])
        try:
            pods = [Replica("uid-1", "127.0.0.1"), Replica("uid-2", "127.0.0.1")]
            while (readings := await scraper.read(pods))[0].load is None:  # a slow machine's proxy is not there yet
                pass
            return readings
        finally:
            await scraper.close()
            proxy.stop()
            await running

    own, others = asyncio.run(main())
    assert own.load is not None
    assert (own.load.arrived_rows, own.attainable) == (0, True)
    assert others.load is None
    assert others.invalid
