import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from shoal_runtime.http.listening import Connections, open_socket
from shoal_runtime.http.server import App
from shoal_runtime.readiness import Readiness
from shoal_schema.fields.addresses import Address
from shoal_schema.process.environment import SettingsError


def test_a_unix_socket_is_made_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "run" / "runtime.sock"

    open_socket(Address(path=str(path))).close()

    assert stat.S_ISSOCK(path.stat().st_mode)


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "runtime.sock")
    open_socket(Address(path=path)).close()

    listener = open_socket(Address(path=path))

    listener.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listener.close()


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "runtime.sock")
    with open_socket(Address(path=path)) as listener:
        listener.listen()

        with pytest.raises(SettingsError, match="another process listens there"):
            open_socket(Address(path=path))

        assert os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    path.write_text("precious")

    with pytest.raises(SettingsError, match="the file there is not a socket"):
        open_socket(Address(path=str(path)))

    assert path.read_text() == "precious"


def test_a_port_in_use_is_named() -> None:
    with open_socket(Address(host="127.0.0.1", port=0)) as listener:
        port = listener.getsockname()[1]
        listener.listen()

        with pytest.raises(SettingsError, match=f"SHOAL_RUNTIME_LISTEN=127.0.0.1:{port}"):
            open_socket(Address(host="127.0.0.1", port=port))


def test_the_last_connection_to_close_is_noticed(tmp_path: Path) -> None:
    async def run() -> list[int]:
        counts: list[int] = []
        empty = asyncio.Event()
        path = str(tmp_path / "s")
        app = App(Readiness(), max_body_bytes=1024)
        connections = Connections(app, open_socket(Address(path=path)), empty.set)
        assert await connections.listen() == (f"unix:{path}", "unix")
        first = await asyncio.open_unix_connection(path)
        second = await asyncio.open_unix_connection(path)
        for reader, writer in (first, second):
            writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            counts.append(len(connections))
        first[1].close()
        await first[1].wait_closed()
        assert not empty.is_set()
        second[1].close()
        await asyncio.wait_for(empty.wait(), 20)
        counts.append(len(connections))
        await connections.close()
        return counts

    assert asyncio.run(run()) == [2, 2, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_socket_is_removed_wherever_the_models_code_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        app = App(Readiness(), max_body_bytes=1024)
        connections = Connections(app, open_socket(Address(path="s")), lambda: None)
        await connections.listen()
        os.chdir("/")
        await connections.close()

    monkeypatch.chdir(tmp_path)
    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
