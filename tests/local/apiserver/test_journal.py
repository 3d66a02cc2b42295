import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal_local.apiserver.credentials import Credentials
from shoal_local.apiserver.journal import BrokenJournalError, Journal, restore
from shoal_local.apiserver.storage.store import Store
from tests.local.apiserver.kubectl import Kubectl

KEY = "/configmaps"
MANIFEST = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: '1'}}"
CREDENTIALS = Credentials("a", "b", "c", "d", "e")


def written(path: Path) -> Store:
    store = Store()
    with closing(Journal(path, CREDENTIALS, store)) as journal:
        store.listener = journal.record
        for name in "abc":
            store.write(KEY, {"metadata": {"name": name}})
        store.remove(KEY, store.objects[KEY]["", "b"])
    return store


def test_the_state_is_read_back_with_its_changes(tmp_path: Path) -> None:
    path, again = tmp_path / "state", Store()
    store = written(path)

    assert restore(path, again) == CREDENTIALS
    assert again.objects == store.objects
    assert again.revision == store.revision
    assert again.since(KEY, 1) == store.since(KEY, 1)


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    path, again = tmp_path / "state", Store()
    written(path)
    path.write_bytes(path.read_bytes()[:-10])

    restore(path, again)

    assert sorted(name for _, name in again.objects[KEY]) == ["a", "b", "c"]


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    written(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "no json\n"])
def test_a_file_of_something_else_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state"
    path.write_text(text)
    with pytest.raises(BrokenJournalError, match="state is not a snapshot of this server"):
        restore(path, Store())


@pytest.mark.integration
def test_a_killed_server_comes_back_as_it_was(tmp_path: Path) -> None:
    config, state = tmp_path / "kubeconfig", tmp_path / "state"
    kubectl = Kubectl(config, tmp_path / "cache", "default")

    def start(listen: str) -> "subprocess.Popen[bytes]":
        config.unlink(missing_ok=True)
        options = ["--listen", listen, "--kubeconfig", str(config), "--snapshot", str(state)]
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal_local.apiserver", *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        deadline = time.monotonic() + 60
        while not config.exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        return process

    first = start("127.0.0.1:0")
    try:
        kubectl("apply", "-f", "-", stdin=MANIFEST)
        before = kubectl("get", "cm", "a", "-o", "yaml", "--show-managed-fields")
        known = config.read_text()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    port = known.split("https://127.0.0.1:")[1].split()[0]
    second = start(f"127.0.0.1:{port}")
    try:
        assert config.read_text() == known
        assert kubectl("get", "cm", "a", "-o", "yaml", "--show-managed-fields") == before
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(10) == -signal.SIGTERM
