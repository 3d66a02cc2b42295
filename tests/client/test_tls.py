"""Clients and commands against a proxy that speaks TLS, over real sockets."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from shoal import AsyncClient, Client
from shoal.command_line import run
from shoal.errors import ConnectionFailed, InvalidInput, ShoalError
from shoal.exchange import Verify
from shoal.pair import CERTIFICATE
from shoal.serving.hints import first_requests
from shoal.wire.signature import Signature, Tensor
from tests.calls import row
from tests.certificates import CLIENT, Authority
from tests.fakes import RunningProxy, running_proxy

TRUST, STRANGER = Authority(), Authority("a stranger")
ROW = row(1)
DOUBLED = [2 * each for each in ROW]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what server and callers need."""
    made = tmp_path_factory.mktemp("tls")
    TRUST.issue("cat.default.svc").written(made)
    TRUST.written(made)
    STRANGER.written(made / "stranger")
    certificate, key = TRUST.issue("a caller", usages=(CLIENT,)).written(made / "own")
    (made / "own" / "both.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    return made


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[RunningProxy]:
    with running_proxy(tls_certificate=str(folder / "tls.crt"), tls_key=str(folder / "tls.key")) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(folder: Path) -> Iterator[RunningProxy]:
    certificate, key, client_ca = (str(folder / name) for name in ("tls.crt", "tls.key", "ca.crt"))
    with running_proxy(tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca) as running:
        yield running


def url(running: RunningProxy) -> str:
    return running.url.replace("http://", "https://")


@pytest.mark.parametrize("trusted", ["ca.crt", "tls.crt", "a path", "a context", "nobody needed"])
def test_client_trusts_the_configured_authority(secure: RunningProxy, folder: Path, trusted: str) -> None:
    given: dict[str, Verify] = {"a path": folder / "ca.crt", "a context": TRUST.trusted(), "nobody needed": False}
    verify = given.get(trusted, str(folder / trusted))
    with Client(url(secure), verify=verify) as client:
        assert client.predict(ROW).tolist() == DOUBLED
        assert client.predict_batch([ROW, ROW]).tolist() == [DOUBLED] * 2


@pytest.mark.parametrize("addresses", [1, 2])
def test_an_asyncio_client_does_too(secure: RunningProxy, folder: Path, addresses: int) -> None:
    async def ask(verify: Verify) -> list[float]:
        async with AsyncClient([url(secure)] * addresses, verify=verify) as client:
            answer: list[float] = (await client.predict(ROW)).tolist()
            return answer

    assert asyncio.run(ask(folder / "ca.crt")) == DOUBLED
    with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(folder / "stranger" / "ca.crt"))


def test_untrusted_server_gets_no_request(secure: RunningProxy, folder: Path) -> None:
    for verify in (True, folder / "stranger" / "ca.crt"):
        with Client(url(secure), verify=verify) as client, pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY"):
            client.predict(ROW)


def test_a_client_that_shows_a_certificate_brings_its_context(mutual: RunningProxy, folder: Path) -> None:
    own = (folder / "own" / "tls.crt", folder / "own" / "tls.key")
    with Client(url(mutual), verify=TRUST.trusted(own)) as client:
        assert client.predict(ROW).tolist() == DOUBLED
    with Client(url(mutual), verify=TRUST.trusted()) as client, pytest.raises(ShoalError):
        client.predict(ROW)


@pytest.mark.parametrize("file", ["nowhere", "own"])
def test_a_file_that_cannot_be_used_is_named(folder: Path, file: str) -> None:
    with pytest.raises(InvalidInput, match=f"cannot use the certificates of {folder / file}: .*director"):
        Client("https://127.0.0.1:1", verify=folder / file)


def test_commands_take_the_authority_as_a_file(
    secure: RunningProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = ["--ca-file", str(folder / "ca.crt")]
    assert run(["predict", url(secure), "--data", str(ROW), "--json", *ca]) == 0
    assert json.loads(capsys.readouterr().out) == DOUBLED
    assert run(["info", url(secure), *ca]) == 0
    assert run(["info", url(secure)]) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert run(["info", url(secure), "--ca-file", str(folder / "nowhere")]) == 2


def test_commands_show_a_certificate_of_their_own(
    mutual: RunningProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, own = ["--ca-file", str(folder / "ca.crt")], folder / "own"
    for shown in (
        ["--cert", str(own / "tls.crt"), "--key", str(own / "tls.key")],
        ["--cert", str(own / "both.pem")],
    ):
        assert run(["info", url(mutual), *ca, *shown]) == 0
    assert run(["info", url(mutual), *ca]) == 1
    assert run(["info", url(mutual), *ca, "--cert", str(own / "tls.crt")]) == 2
    capsys.readouterr()


def test_bench_loads_a_server_that_speaks_tls(
    secure: RunningProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seconds", "2", "--data", str(ROW), "--json", "--ca-file", str(folder / "ca.crt")]
    assert run(["bench", url(secure), "--admin", secure.admin_url, *options]) == 0
    assert '"held_per_s"' in capsys.readouterr().out


# The server's side.


def test_the_first_requests_trust_the_servers_own_certificate() -> None:
    signature = Signature("cat", ("1",), (Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),), 4)
    curl, command = first_requests("https://127.0.0.1:8080", signature, certificate="/a folder/tls.crt")
    assert curl.startswith("curl --cacert '/a folder/tls.crt' ")
    assert command.startswith("shoal predict --ca-file '/a folder/tls.crt' https://127.0.0.1:8080 ")


def test_several_models_on_one_port_do_not_speak_tls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CERTIFICATE, "/a/file")
    assert run(["serve", "one=examples/adder", "two=examples/adder"]) == 2
    assert "port with a single model" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--tls-certificate", "a"], ["--tls-key", "a"], ["--tls-client-ca", "a"]])
def test_files_that_belong_together_are_asked_for_together(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "examples/adder", *given]) == 2
    assert "it needs --tls-" in capsys.readouterr().err


def test_a_batch_job_trusts_whom_it_is_told_to_and_shows_its_certificate(
    mutual: RunningProxy, folder: Path, tmp_path: Path
) -> None:
    parquet.write_table(pa.table({"x": [ROW, ROW]}), tmp_path / "rows.parquet")
    command = [sys.executable, "-m", "shoal", "batch", "--to", url(mutual), "--input", str(tmp_path / "rows.parquet")]
    command += ["--output", str(tmp_path / "out"), "--ca-file", str(folder / "ca.crt")]
    command += ["--cert", str(folder / "own" / "both.pem")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert parquet.read_table(tmp_path / "out" / "part-00000.parquet")["y"].to_pylist() == [DOUBLED] * 2
