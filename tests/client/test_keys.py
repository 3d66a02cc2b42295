"""Keys that callers show: read from a file, sent by both clients, and what a refusal becomes."""

import asyncio
from pathlib import Path

import pytest

from shoal import AsyncClient, Client, NotAllowed
from shoal.__main__ import main
from shoal.errors import InvalidInput
from shoal.keys import key_of
from tests.calls import row
from tests.fakes import running_proxy

KEY = "alice-key-0123456789"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (KEY, KEY),
        (f"\n  {KEY}\n", KEY),
        (f"alice={KEY}\nbob=other-key-0123456789\n", KEY),
        (f"# callers\nalice=sha256:{'ab' * 32}\nbob={KEY}\n", KEY),
        ("c29tZSByYW5kb20gYnl0ZXM=", "c29tZSByYW5kb20gYnl0ZXM="),  # base64 padding is not NAME=KEY
        ("a.b=c.d", "a.b=c.d"),
        ("eyJh.eyJi.c2ln", "eyJh.eyJi.c2ln"),
    ],
)
def test_a_file_holds_a_key_alone_or_with_names(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "key").write_text(text)
    assert key_of(tmp_path / "key") == key


@pytest.mark.parametrize("text", ["", "\n# none\n", f"alice=sha256:{'ab' * 32}", "schl\u00fcssel"])
def test_a_file_without_a_key_is_named_and_nothing_of_it_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match="key") as refused:
        key_of(tmp_path / "key")
    assert "sha256" not in str(refused.value)
    with pytest.raises(InvalidInput, match="No such file"):
        key_of(tmp_path / "nowhere")


def test_both_clients_show_their_key_and_say_when_it_is_none(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"alice={KEY}\n")
    with running_proxy(process__api_keys=str(tmp_path / "keys")) as running:
        doubled = [2 * value for value in row(1)]
        with Client(running.url, "double", api_key=KEY) as client:
            assert client.predict(row(1)).tolist() == doubled
            assert client.ready()

        async def ask() -> list[float]:
            async with AsyncClient(running.url, api_key=KEY) as client:
                answer: list[float] = (await client.predict(row(1))).tolist()
                return answer

        assert asyncio.run(ask()) == doubled
        for api_key in (None, "wrong-key-0123456789"):
            with Client(running.url, api_key=api_key) as client:
                assert client.ready()  # which asks for no key
                with pytest.raises(NotAllowed, match="key") as refused:
                    client.predict(row(1))
                assert (refused.value.status, refused.value.may_have_run) == (401, False)


MANIFEST = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceService
metadata: {name: adder}
spec:
  model: {uri: ADDER}
  access: {apiKeys: {secretName: callers}}
"""
ADDER = Path(__file__).parents[2] / "examples" / "adder" / "model"


def test_service_that_requires_keys_is_not_served_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_PROXY_API_KEYS", raising=False)
    manifest, keys = tmp_path / "adder.yaml", tmp_path / "keys"
    manifest.write_text(MANIFEST.replace("ADDER", str(ADDER)))
    keys.write_text(f"alice={KEY}\n")

    assert main(["serve", str(manifest)]) == 2
    assert "--api-key-file FILE" in capsys.readouterr().err
    assert main(["serve", str(manifest), "--api-key-file", str(tmp_path / "nowhere")]) == 1
    assert "nowhere: it must have one NAME=KEY per line" in capsys.readouterr().err
    for more in (["two=" + str(ADDER)], ["--management"]):
        assert main(["serve", f"one={manifest}", *more, "--api-key-file", str(keys)]) == 2
        assert "supports a single model" in capsys.readouterr().err


def test_a_command_says_which_file_holds_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["info"], ["predict", "--data", "1"], ["bench", "--seconds", "1"]):
        given = [command[0], "http://127.0.0.1:9", *command[1:], "--api-key-file", str(tmp_path / "nowhere")]
        assert main(given) == 2
        assert "cannot read a key from" in capsys.readouterr().err
