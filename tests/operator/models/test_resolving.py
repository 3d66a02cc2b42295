"""Resolution of names in the background: repeated for followed names, and never for resolved ones."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.models.resolution import ModelResolution
from shoal_operator.models.resolving import MAX_BODY_BYTES, Registries, Resolver
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.locations import LocationError
from tests.certificates import Authority
from tests.operator.fakes import clock, run
from tests.operator.samples import service
from tests.operator.servers import Answer, Asked, serving

CAT, DOG = Key("default", "cat"), Key("default", "dog")
NAME = "models:/cat@best"


@dataclass
class World:
    """A registry with given responses, and a resolver that uses it."""

    version: str = "models:/cat/1"
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    marked: list[tuple[Key, float]] = field(default_factory=list)
    hanging: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.records = Records()
        mark = lambda key, delay_s: self.marked.append((key, delay_s))  # noqa: E731
        self.resolver = Resolver(self.ask, mark, self.records, clock, interval_s=300, environment={})

    async def ask(self, uri: str) -> str:
        self.asked.append(uri)
        if uri in self.hanging:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        return self.version

    async def reconcile(
        self, key: Key = CAT, uri: str = NAME, *, follows: bool = False, stored: Json | None = None
    ) -> Any:
        """Look, let what was asked be answered, and look again."""
        resource = service() if stored is None else {**service(), "status": {"model": stored}}
        self.resolver.resolution(key, resource, uri, follows=follows)
        await asyncio.sleep(0.01)
        return self.resolver.resolution(key, resource, uri, follows=follows)


def test_name_is_resolved_once_and_reconciliation_does_not_wait() -> None:
    async def main() -> None:
        world = World()
        assert world.resolver.resolution(CAT, service(), NAME, follows=False) == ModelResolution(NAME)
        assert await world.reconcile() == ModelResolution(NAME, "models:/cat/1")
        assert world.marked == [(CAT, 0.0)]

        world.version = "models:/cat/2"
        await asyncio.sleep(100_000)
        assert await world.reconcile() == ModelResolution(NAME, "models:/cat/1")
        assert world.asked == [NAME]

    run(main())


def test_restarted_operator_uses_the_version_in_the_status() -> None:
    async def main() -> None:
        world = World(version="models:/cat/9")
        stored = {"uri": NAME, "resolved": "models:/cat/1"}
        assert await world.reconcile(stored=stored) == ModelResolution(NAME, "models:/cat/1")
        assert world.asked == []

    run(main())


@pytest.mark.parametrize(
    "stored",
    [
        {"uri": "models:/cat@other", "resolved": "models:/cat/7"},
        {"uri": NAME, "resolved": "models:/cat@other"},
        {"uri": NAME, "resolved": "models:/dog/7"},
        {"uri": NAME, "resolved": "https://elsewhere/7"},
        {"uri": NAME, "resolved": 7},
        {"uri": NAME},
    ],
)
def test_version_of_another_name_in_the_status_is_ignored(stored: Json) -> None:
    async def main() -> None:
        world = World()
        assert (await world.reconcile(stored=stored)).resolved == "models:/cat/1"
        assert world.asked == [NAME]

    run(main())


def test_followed_name_is_resolved_at_the_operators_interval() -> None:
    async def main() -> None:
        world = World()
        await world.reconcile(follows=True)
        world.version = "models:/cat/2"
        assert (await world.reconcile(follows=True)).resolved == "models:/cat/1"
        assert world.marked[-1][0] == CAT
        assert world.marked[-1][1] == pytest.approx(300, abs=1)
        await asyncio.sleep(300)
        assert (await world.reconcile(follows=True)).resolved == "models:/cat/2"
        assert len(world.asked) == 2

    run(main())


def test_newly_followed_name_is_resolved_at_once() -> None:
    async def main() -> None:
        world = World(version="models:/cat/2")
        stored = {"uri": NAME, "resolved": "models:/cat/1"}
        await world.reconcile(stored=stored)
        assert (await world.reconcile(follows=True, stored=stored)).resolved == "models:/cat/2"

    run(main())


def test_unreachable_registry_is_retried_with_backoff_and_the_last_version_stays() -> None:
    async def main() -> None:
        world = World()
        await world.reconcile(follows=True)
        world.error = LocationError("the registry is away")
        await asyncio.sleep(300)
        assert await world.reconcile(follows=True) == ModelResolution(NAME, "models:/cat/1", "the registry is away")
        waits = []
        for _ in range(9):
            waits.append(round(world.marked[-1][1]))
            await asyncio.sleep(world.marked[-1][1])
            await world.reconcile(follows=True)
        assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]

        assert await world.reconcile(follows=False) == ModelResolution(NAME, "models:/cat/1")
        world.error = None
        await asyncio.sleep(300)
        assert (await world.reconcile(follows=True)).problem == ""

    run(main())


def test_a_registry_that_hangs_holds_neither_this_service_nor_another() -> None:
    async def main() -> None:
        world = World(hanging={NAME})
        assert await world.reconcile() == ModelResolution(NAME)
        assert (await world.reconcile(DOG, "models:/cat@worst")).resolved == "models:/cat/1"
        await asyncio.sleep(11)
        assert "within 10 s" in (await world.reconcile()).problem

    run(main())


def test_name_of_a_deleted_service_is_no_longer_resolved() -> None:
    async def main() -> None:
        world = World(hanging={NAME})
        await world.reconcile()
        world.records.drop(CAT)
        await asyncio.sleep(100)
        assert world.marked == []
        await world.resolver.close()

    run(main())


@pytest.mark.parametrize(
    "uri", [None, "file:///models/cat", "s3://bucket/cat", "models:/cat/1", f"hf://a/b@{'c' * 40}"]
)
def test_immutable_name_causes_no_request(uri: str | None) -> None:
    async def main() -> None:
        world = World()
        assert world.resolver.resolution(CAT, service(), uri, follows=True) is None
        assert world.asked == []

    run(main())


def resolved(answer: Answer, uri: str, **environment: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what a real server's answer makes of a name, and what was asked with which credentials."""
    return asyncio.run(resolving(answer, uri, **environment))


async def resolving(answer: Answer, uri: str, **environment: str) -> tuple[str, list[tuple[str, str]]]:
    async with serving(answer) as (port, asked):
        server = f"http://127.0.0.1:{port}"
        registries = Registries({"MLFLOW_TRACKING_URI": server, "HF_ENDPOINT": server, **environment})
        try:
            found = await registries.resolve(uri)
        except LocationError as error:
            found = f"refused: {error}"
        finally:
            await registries.close()
        return found, [(each.path, each.token) for each in asked]


def test_branch_is_resolved_at_the_hub_with_the_operators_token() -> None:
    commit = "a" * 40
    found, asked = resolved(lambda _: (200, {"sha": commit}), "hf://team/cat@v1", HF_TOKEN="t0ken")
    assert found == f"hf://team/cat@{commit}"
    assert asked == [("/api/models/team/cat/revision/v1", "Bearer t0ken")]


def test_alias_is_resolved_at_the_mlflow_server() -> None:
    found, asked = resolved(lambda _: (200, {"model_version": {"version": "3"}}), NAME, MLFLOW_TRACKING_TOKEN="t0ken")
    assert found == "models:/cat/3"
    assert asked == [("/api/2.0/mlflow/registered-models/alias", "Bearer t0ken")]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (lambda _: (403, {}), "set the version in model.uri"),
        (lambda _: (400, {}), "does not have models:/cat@best"),
        (lambda _: (503, {}), "returned 503"),
        (lambda _: (200, "<html>"), "is not JSON"),
        (lambda _: (200, "x" * (MAX_BODY_BYTES + 1)), "longer than"),
        (lambda _: (200, {}), "has no model_version.version"),
        (lambda _: (200, {"model_version": {"version": "../../etc"}}), "refused"),
        (
            lambda _: (302, "", {"Location": "http://u:s3cret@127.0.0.1:9/a"}),
            "redirects to http://127.0.0.1:9, which is not",
        ),
        (lambda _: (302, "", {"Location": "https:///x"}), "redirects to https://"),
        (lambda _: (302, "", {"Location": "/again"}), "too many redirects"),
        (lambda _: (304, ""), "returned 304"),
    ],
)
def test_response_without_a_version_is_reported_without_secrets(answer: Callable[..., Any], reported: str) -> None:
    secrets = {"MLFLOW_TRACKING_USERNAME": "someb0dy", "MLFLOW_TRACKING_PASSWORD": "s3cret"}
    found, _ = resolved(answer, NAME, **secrets)
    assert found.startswith("refused: ")
    assert reported in found
    assert not any(secret in found for secret in ("s3cret", "someb0dy", "Basic"))


@pytest.mark.parametrize(
    ("environment", "reported"),
    [
        ({"MLFLOW_TRACKING_URI": ""}, "set the version in model.uri"),
        ({"MLFLOW_TRACKING_URI": "http://u:s3cret@127.0.0.1:9"}, "127.0.0.1:9 is unreachable"),
        ({"MLFLOW_TRACKING_TOKEN": "s3cret\n"}, "MLFLOW_TRACKING_TOKEN ends in a newline"),
        ({"MLFLOW_TRACKING_TOKEN": "s3cret\n"}, "the chart's value env"),
        ({"MLFLOW_TRACKING_TOKEN": "s3c\xe9ret"}, "MLFLOW_TRACKING_TOKEN holds a character that is not ASCII"),
        ({"MLFLOW_TRACKING_URI": "http://u:s3cret/x@127.0.0.1:9"}, "MLFLOW_TRACKING_URI must be the http://"),
        ({"HTTP_PROXY": "socks5://u:s3cret@127.0.0.1:9"}, "HTTP_PROXY must be the http://"),
    ],
)
def test_a_registry_that_is_not_known_or_not_there_is_reported(environment: dict[str, str], reported: str) -> None:
    found, asked = resolved(lambda _: (200, {}), NAME, **environment)
    assert reported in found
    assert "s3c" not in found
    assert asked == []


def test_a_registry_whose_certificate_is_not_trusted_is_reported_with_the_setting(tmp_path: Path) -> None:
    async def main() -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*Authority().issue().written(tmp_path))
        async with serving(lambda _: (200, {}), tls=context) as (port, _):
            registries = Registries({"MLFLOW_TRACKING_URI": f"https://127.0.0.1:{port}"})
            with pytest.raises(LocationError) as error:
                await registries.resolve(NAME)
            await registries.close()
            return str(error.value)

    reported = asyncio.run(main())
    assert "TLS certificate is not trusted" in reported
    assert "SSL_CERT_FILE" in reported


def test_redirect_to_another_server_is_rejected() -> None:
    async def main() -> list[str]:
        async with serving(lambda _: (200, {"sha": "a" * 40})) as (other, asked):
            away = lambda _: (307, "", {"Location": f"http://127.0.0.1:{other}/moved"})  # noqa: E731
            found, _ = await resolving(away, "hf://team/cat", HF_TOKEN="t0ken")
            assert f"redirects to http://127.0.0.1:{other}, which is not followed" in found
            return [each.token for each in asked]

    assert asyncio.run(main()) == []


def test_a_redirect_of_the_same_server_is_followed() -> None:
    def moved(asked: Asked) -> Any:
        return (200, {"sha": "a" * 40}) if asked.path == "/new" else (307, "", {"Location": "/new"})

    found, asked = resolved(moved, "hf://team/cat", HF_TOKEN="t0ken")
    assert found == f"hf://team/cat@{'a' * 40}"
    assert asked[-1] == ("/new", "Bearer t0ken")


def test_response_without_a_model_is_not_reported_as_missing_credentials() -> None:
    found, _ = resolved(lambda _: (200, {"model_version": {"version": "1/../../other"}}), NAME)
    assert found == f"refused: the registry's response contains no version of {NAME}"


def test_services_of_one_name_share_its_requests() -> None:
    async def main() -> None:
        world = World()
        services = [Key("default", f"cat-{number}") for number in range(61)]
        for _ in range(2):
            for key in services:
                world.resolver.resolution(key, service(), NAME, follows=True)
            await asyncio.sleep(0.01)
        named = {world.resolver.resolution(key, service(), NAME, follows=True) for key in services}
        assert named == {ModelResolution(NAME, "models:/cat/1")}
        assert len(world.asked) == 1

        world.version = "models:/cat/2"
        await asyncio.sleep(300)
        for key in services:
            assert (await world.reconcile(key, follows=True)).resolved == "models:/cat/2"
        assert len(world.asked) == 2

    run(main())


def test_later_service_gets_a_fresh_resolution() -> None:
    async def main() -> None:
        world = World()
        await world.reconcile(CAT, follows=True)
        world.version = "models:/cat/2"
        await asyncio.sleep(1)
        assert (await world.reconcile(DOG)).resolved == "models:/cat/2"
        assert len(world.asked) == 2

    run(main())


def test_a_name_that_waits_for_its_turn_is_not_late() -> None:
    async def main() -> None:
        world = World(hanging={f"models:/cat@{number}" for number in range(8)})
        for number in range(8):
            world.resolver.resolution(Key("default", str(number)), service(), f"models:/cat@{number}", follows=True)
        await asyncio.sleep(5)
        assert await world.reconcile(CAT) == ModelResolution(NAME)
        await asyncio.sleep(6)
        assert await world.reconcile(CAT) == ModelResolution(NAME, "models:/cat/1")
        await world.resolver.close()

    run(main())
