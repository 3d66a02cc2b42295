"""Models of the hub, from a server that stands in for its three routes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.fetching import Fetcher
from shoal_runtime.storage.hub import needed_files
from shoal_runtime.storage.listing import ListedFile
from tests.runtime.storage.stand_in import StandIn, serving

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
FILES = {
    COMMITS["main"]: {
        "config.json": b"{}",
        "model.safetensors": b"new",
        "pytorch_model.bin": b"huge",
        ".gitattributes": b"",
    },
    COMMITS["v1"]: {"config.json": b"{}", "sub/model.safetensors": b"old", "sub/empty.txt": b""},
}


class Hub(StandIn):
    """Knows one repository, `team/encoder`, of two commits; one that is gated; and is away when expected to."""

    def __init__(self) -> None:
        self.away = 0
        super().__init__()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Say what the hub says, or nothing of use while it is away."""
        self.away -= self.away > 0
        return (503, b"", {}) if self.away else self._known(path)

    def _known(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if path.startswith("/api/models/team/encoder/revision/"):
            commit = COMMITS.get(revision := path.rpartition("/")[2], revision)
            if commit not in FILES:
                return 404, b"{}", {"x-error-code": "RevisionNotFound"}
            return 200, json.dumps({"id": "team/encoder", "sha": commit, "siblings": []}).encode(), {}
        if path.startswith("/api/models/team/encoder/tree/"):
            files = FILES[path.partition("?")[0].rpartition("/")[2]]
            listed = [
                {"type": "file", "path": name, "size": len(body), "oid": f"{name}1"} for name, body in files.items()
            ]
            return 200, json.dumps(listed).encode(), {}
        if path.startswith("/team/encoder/resolve/"):
            commit, _, name = path.removeprefix("/team/encoder/resolve/").partition("/")
            return 200, FILES[commit][name], {}
        if path.startswith("/api/models/team/secret"):
            return 403, b"{}", {"x-error-code": "GatedRepo"}
        return 404, b"{}", {"x-error-code": "RepoNotFound"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()
    with serving(made):
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def fetcher(cache: Path) -> Fetcher:
    return Fetcher(cache, Readiness(), pause_s=lambda attempt: 0.0)


def test_a_repository_comes_as_its_newest_commit_without_what_repeats_its_weights(hub: Hub, tmp_path: Path) -> None:
    found = fetcher(tmp_path).fetch("hf://team/encoder")

    assert found.stem == "encoder"
    assert {path.name: path.read_bytes() for path in found.directory.iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": b"new",
    }
    assert all(COMMITS["main"] in path for path, _ in hub.asked if "/resolve/" in path or "/tree/" in path)


def test_a_tag_and_a_folder_of_it_can_be_named(hub: Hub, tmp_path: Path) -> None:
    found = fetcher(tmp_path).fetch("hf://team/encoder@v1/sub")

    assert {path.name: path.read_bytes() for path in found.directory.iterdir()} == {
        "model.safetensors": b"old",
        "empty.txt": b"",
    }


def test_one_file_can_be_named(hub: Hub, tmp_path: Path) -> None:
    found = fetcher(tmp_path).fetch("hf://team/encoder@v1/sub/model.safetensors")

    assert found.file == "model.safetensors"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://team/nothing", "hf://team/nothing does not exist, or the token"),
        ("hf://team/encoder@gone", "the revision of hf://team/encoder@gone does not exist"),
        ("hf://team/secret", "hf://team/secret is gated. Accept its terms"),
        ("hf://team/encoder@v1/nothing", "there are no files at hf://team/encoder@v1/nothing"),
        ("hf://team", "hf://team does not name a model"),
    ],
)
def test_an_unavailable_model_is_reported_with_its_remedy(hub: Hub, uri: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as error:
        fetcher(tmp_path).fetch(uri)

    assert str(error.value).startswith(expected)


def test_a_hub_that_is_unavailable_for_a_while_is_retried_and_then_the_last_model_is_used(
    hub: Hub, tmp_path: Path
) -> None:
    hub.away = 3
    first = fetcher(tmp_path).fetch("hf://team/encoder")
    hub.away = 100

    assert fetcher(tmp_path).fetch("hf://team/encoder") == first


def test_a_hub_that_cannot_be_reached_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")

    with pytest.raises(LoadError, match="hf://team/encoder cannot be downloaded: ConnectError"):
        fetcher(tmp_path).fetch("hf://team/encoder")


def test_weights_of_other_frameworks_come_where_there_are_no_safetensors() -> None:
    files = [ListedFile(name, 1, "", name) for name in ("pytorch_model.bin", "config.json")]

    assert needed_files(files) == files


def test_what_an_init_container_has_fetched_is_accepted_without_credentials(hub: Hub, tmp_path: Path) -> None:
    first = fetcher(tmp_path).fetch("hf://team/encoder@v1")
    hub.asked.clear()

    assert Fetcher(tmp_path, Readiness(), fetched=True).fetch("hf://team/encoder@v1") == first
    assert hub.asked == []


def test_a_response_that_is_not_the_hubs_is_reported(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "answer", lambda path: (200, b'{"sha": "1"}', {}))

    with pytest.raises(LoadError, match="HF_ENDPOINT"):
        Fetcher(tmp_path, Readiness()).fetch("hf://team/encoder")
