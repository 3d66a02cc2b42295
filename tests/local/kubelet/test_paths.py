"""The rewriting of mount paths in command lines and variables of containers without mounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_local.kubelet.container_spec import rewriter

PATHS = {"/tmp": "/p/tmp", "/run/shoal": "/p/run", "/models/cat": "/home/me/cat", "/models/cat/labels/": "/p/labels"}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("/tmp", "/p/tmp"),
        ("unix:/run/shoal/runtime.sock", "unix:/p/run/runtime.sock"),
        ("file:///models/cat", "file:///home/me/cat"),
        ("file:///models/cat/labels/en.txt", "file:///p/labels/en.txt"),
        ('{"words": "/models/cat/words"}', '{"words": "/home/me/cat/words"}'),
        ("cat /tmp/a >/tmp/b; F=/tmp/c", "cat /p/tmp/a >/p/tmp/b; F=/p/tmp/c"),
        ("/tmp:/usr/bin:/tmp/bin", "/p/tmp:/usr/bin:/p/tmp/bin"),
    ],
)
def test_a_mount_path_becomes_the_folder_that_lies_there(text: str, becomes: str) -> None:
    assert rewriter(PATHS)(text) == becomes


@pytest.mark.parametrize(
    "text",
    [
        "/tmpfs",
        "/tmp.old",
        "/var/tmp",
        "$HOME/tmp",
        "${X}/tmp",
        "http://host/tmp",
        "/models/cats",
        "/models",
        "relative/tmp",
    ],
)
def test_a_path_that_only_looks_like_one_stays(text: str) -> None:
    assert rewriter(PATHS)(text) == text


@given(st.text())
def test_without_paths_nothing_changes(text: str) -> None:
    assert rewriter({})(text) == text
    assert rewriter({"/": "/p"})(text) == text
