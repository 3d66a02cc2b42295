"""Servers are found by commands of their user, while they run."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.__main__ import main
from shoal.directory import PREFIX, own_directory
from shoal.discovery import ENTRY, LocalServer, ServedModel, admin_url, admin_urls, find_model, local_servers, register
from shoal.serving.errors import LocalError
from tests.client.fake_server import running, v2
from tests.client.test_serve import Start, start, url_in  # noqa: F401 (a fixture)


def server(port: int, *names: str, default: str = "") -> LocalServer:
    models = tuple(ServedModel(name, f"http://127.0.0.1:{port + 1 + at}") for at, name in enumerate(names))
    return LocalServer(os.getpid(), f"http://127.0.0.1:{port}", models, default)


@pytest.fixture
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory


@pytest.fixture
def registered(runtime_directory: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(stack: ExitStack, entry: LocalServer) -> Path:
    directory = stack.enter_context(own_directory())
    register(directory, entry)
    return Path(directory)


def test_the_only_model_needs_no_address(registered: ExitStack) -> None:
    serve(registered, server(8080, "cat"))

    assert find_model("info", None) == ("http://127.0.0.1:8080", "cat")
    assert admin_urls() == ["http://127.0.0.1:8081"]
    assert admin_url("http://127.0.0.1:8080/", "cat") == "http://127.0.0.1:8081"
    assert admin_url("http://10.0.0.5:8080", "cat") is None


def test_of_several_models_the_command_must_name_one(registered: ExitStack) -> None:
    serve(registered, server(8080, "cat", "words"))
    serve(registered, server(9000, "cat"))

    assert find_model("info", "words") == ("http://127.0.0.1:8080", "words")
    assert len(admin_urls()) == 3
    with pytest.raises(LocalError, match=r"shoal info http://127\.0\.0\.1:9000 --model cat") as raised:
        find_model("info", "cat")
    assert "words" not in str(raised.value)


def test_a_graph_stands_for_its_steps(registered: ExitStack) -> None:
    serve(registered, server(8080, "cat", "words", "both", default="both"))

    assert find_model("bench", None)[1] == "both"
    assert find_model("bench", "cat")[1] == "cat"


def test_a_server_that_ended_is_not_found(registered: ExitStack) -> None:
    with ExitStack() as stack:
        serve(stack, server(8080, "cat"))
        assert local_servers()
    assert local_servers() == []
    with pytest.raises(LocalError, match="shoal serve PATH"):
        admin_urls()
    with pytest.raises(LocalError, match="model cat"):
        find_model("info", "cat")


def test_entries_of_others_and_without_an_owner_do_not_count(
    registered: ExitStack, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = serve(registered, server(8080, "cat"))
    unowned = runtime_directory / f"{PREFIX}unowned"
    unowned.mkdir(mode=0o700)
    register(str(unowned), server(9000, "dog"))
    (runtime_directory / f"{PREFIX}link").symlink_to(directory)
    assert len(local_servers()) == 1

    directory.chmod(0o755)  # others may read it: not what a server makes
    assert local_servers() == []
    directory.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert local_servers() == []


def test_a_damaged_entry_does_not_count(registered: ExitStack) -> None:
    directory = serve(registered, server(8080, "cat"))
    (directory / ENTRY).write_text("[]")

    assert local_servers() == []


def test_a_directory_open_to_others_is_not_used(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime_directory.chmod(0o755)

    with own_directory() as own:
        assert Path(own).parent == tmp_path
        assert Path(own).stat().st_mode & 0o777 == 0o700


def test_commands_use_what_they_find(registered: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = tmp_path / "item.json"
    item.write_text("[1, 2, 3]")
    with running(v2()) as model:
        serve(registered, LocalServer(os.getpid(), model.url, (ServedModel("adder", "http://127.0.0.1:1"),)))

        assert main(["info"]) == 0
        assert main(["predict", str(item)]) == 0
        assert main(["predict", "--data", "[1, 2, 3]"]) == 0
        assert main(["predict", model.url, "--data", "[1, 2, 3]"]) == 0
        assert main(["predict"]) == 2
        assert main(["predict", model.url]) == 2
    assert capsys.readouterr().out.count("[2., 3., 4.]") == 3


@pytest.mark.integration
def test_a_server_registers_itself(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: F811
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    served = start(XDG_RUNTIME_DIR="")
    output = served.read_until("Ctrl-C stops")

    [found] = local_servers()

    assert found.pid == served.process.pid
    assert [model.name for model in found.models] == ["adder"]
    assert found.url == url_in(output)
    served.process.terminate()
    served.rest()
    assert local_servers() == []
