"""The store of asynchronous requests in buckets.

The stand-in for Google Cloud Storage does not have the API by which the library writes.
"""

import asyncio
import shutil
from collections.abc import Iterator

import pytest

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.asynchronous.records import encode_request
from shoal_proxy.asynchronous.store import JobStore
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import StoreUnavailable
from shoal_schema.process.environment import SettingsError
from tests.interop.stores import Cloud, azure, s3
from tests.ports import free_port

ID = "ab" * 16


@pytest.fixture(scope="module", params=[s3, azure], ids=["s3", "az"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param is azure and shutil.which("npm") is None:
        pytest.skip("azurite is npm's, which is not installed")
    with request.param() as made:
        made.fill("jobs", {"other": b"1"})
        yield made


@pytest.fixture
def uri(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    return f"{cloud.scheme}://jobs/{request.node.originalname}"


def test_requests_starts_and_results_are_kept_below_the_prefix(uri: str) -> None:
    async def use() -> None:
        one, other = JobStore(uri, "cat", "pod-1.a"), JobStore(uri, "cat", "pod-2.b")
        for each in (one, other):
            await each.check()
            await each.renew_lease()
        assert {each.name async for each in one.listed("processes")} == {"pod-1.a", "pod-2.b"}

        job = Job(ID, JobRequest("v2", {}, bytes(300_000)), rows=1, accepted_s=0.0, deadline_s=1.0, owner="alice")
        record = encode_request(job, 0.0)
        assert await other.owner_of(ID) is None
        await one.add_request(ID, record)
        assert await other.accepted_by(ID) == "pod-1.a"
        assert await other.owner_of(ID) == "alice"
        assert await other.request(ID, "pod-1.a") == record
        # One process runs it; a repeated claim of the same process is its own.
        assert [await each.start(ID, 0) for each in (other, one, other)] == [True, False, True]
        assert await one.starts(ID) == ["pod-2.b"]

        assert await other.result(ID) is None
        assert await other.add_result(ID, "alice", HttpResponse(200, (b"one",)))
        assert not await one.add_result(ID, "alice", HttpResponse(503, (b"two",)))
        await other.delete_request(ID)
        assert await one.accepted_by(ID) == ""
        stored = await one.result(ID)
        assert stored is not None
        assert (stored.owner, b"".join(stored.response.body)) == ("alice", b"one")

        await one.cancel(ID, "alice")
        deleted = await other.result(ID)
        assert deleted is not None
        assert deleted.is_deleted
        await one.end_lease(other.process)
        await one.end_lease(other.process)
        assert [each.name async for each in one.listed("processes")] == ["pod-1.a"]

    asyncio.run(use())


def test_a_store_without_conditional_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3() as cloud:
        cloud.fill("jobs", {})
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
        with pytest.raises(StoreUnavailable):
            asyncio.run(JobStore("s3://jobs", "cat", "pod-1.a").check())


def test_a_store_that_does_not_respond_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "key-0123456789",
        "AWS_SECRET_ACCESS_KEY": "secret-0123456789",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)

    async def read() -> None:
        await JobStore("s3://jobs", "cat", "pod-1.a").result(ID)

    with pytest.raises(StoreUnavailable) as error:
        asyncio.run(read())
    assert "0123456789" not in error.value.message


def test_an_invalid_variable_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-0123456789\n")
    with pytest.raises(SettingsError, match="AWS_SECRET_ACCESS_KEY") as error:
        JobStore("s3://jobs", "cat", "pod-1.a")
    assert "0123456789" not in str(error.value)
