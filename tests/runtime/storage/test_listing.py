import hashlib
import itertools
import subprocess
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import ListedFile, Listing, TooManyFiles, below, bounded, checked, tree_digest
from shoal_runtime.storage.unpacking import ArchiveLimits


def entry(key: str, size_bytes: int = 1, validator: str = "") -> ListedFile:
    return ListedFile(key.rpartition("/")[2], size_bytes, validator, key)


def listing(*paths: str) -> Listing:
    return Listing([ListedFile(path, 1, "", path) for path in paths])


@pytest.mark.parametrize(
    ("prefix", "paths"),
    [
        ("model", ["a", "sub/b"]),
        ("model/", ["a", "sub/b"]),
        ("model/sub", ["b"]),
        ("", ["model/a", "model/sub/b", "model-old/a", "modelx"]),
        ("mod", []),
    ],
)
def test_a_folder_is_what_lies_below_it_by_whole_segments(prefix: str, paths: list[str]) -> None:
    keys = ["model/", "model/a", "model/sub/b", "model-old/a", "modelx"]

    assert [found.path for found in below(prefix, map(entry, keys))] == paths


@pytest.mark.parametrize(
    "path",
    ["../a", "/a", "a/../../b", "C:\\a", "a\x00b", "a\nb", "c:a"],
    ids=["up", "root", "far up", "DOS", "NUL", "LF", "drive"],
)
def test_a_file_that_would_land_elsewhere_is_rejected(path: str) -> None:
    with pytest.raises(LoadError, match="outside its directory"):
        checked(listing("good", path), ArchiveLimits(), "s3://b/m")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], "there are no files at s3://b/m"),
        (["a", "a"], "two files with the same path"),
        (["a", "./a"], "two files with the same path"),
        (["a", "a/b"], "'a' both as a file and as a directory"),
        (["a-b", "a", "a/b/c"], "'a' both as a file and as a directory"),
    ],
)
def test_an_invalid_directory_is_rejected(paths: list[str], expected: str) -> None:
    with pytest.raises(LoadError, match=expected):
        checked(listing(*paths), ArchiveLimits(), "s3://b/m")


@pytest.mark.parametrize("limits", [ArchiveLimits(max_files=2), ArchiveLimits(max_bytes=2)])
def test_limits_hold_to_the_last_file_and_byte(limits: ArchiveLimits) -> None:
    assert len(checked(listing("a", "b"), limits, "it").entries) == 2
    with pytest.raises(LoadError, match="SHOAL_MODEL_MAX"):
        checked(listing("a", "b", "c"), limits, "it")


def test_a_listing_without_end_is_read_to_its_limit() -> None:
    assert list(bounded(iter("ab"), 2)) == ["a", "b"]
    with pytest.raises(TooManyFiles):
        list(bounded(itertools.count(), 1000))


def test_a_listing_is_the_same_while_the_store_states_that_nothing_has_changed() -> None:
    base = Listing([ListedFile("a", 1, "x", "p/a"), ListedFile("b", 2, "y", "p/b")])
    moved = Listing([ListedFile("a", 1, "x", "q/a"), ListedFile("b", 2, "y", "q/b")])
    others = [
        Listing([ListedFile("a", 1, "x", ""), ListedFile("b", 2, "z", "")]),
        Listing([ListedFile("a", 1, "x", ""), ListedFile("b", 3, "y", "")]),
        Listing([ListedFile("a", 1, "x", ""), ListedFile("c", 2, "y", "")]),
    ]

    assert moved.digest() == base.digest()
    assert base.digest() not in {other.digest() for other in others}


def test_the_digest_of_a_tree_is_what_sha256sum_prints_summed_again() -> None:
    sums = {"b/c": hashlib.sha256(b"2").hexdigest(), "a": hashlib.sha256(b"1").hexdigest()}

    assert tree_digest(sums) == hashlib.sha256(f"{sums['a']}  a\n{sums['b/c']}  b/c\n".encode()).hexdigest()


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=4), st.sampled_from(["0" * 64, "1" * 64]), max_size=4))
def test_the_digest_of_a_tree_does_not_depend_on_the_order(sums: dict[str, str]) -> None:
    assert tree_digest(dict(reversed(sums.items()))) == tree_digest(sums)


def test_the_page_reports_how_a_folder_is_summed(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "model-sources.md").read_text()
    command = next(part for part in page.split("`") if part.startswith("find . -type f"))
    files = {"b/c d": b"2", "a": b"1", "a-b": b"", "\u00e9": b"3"}
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)

    expected = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True
    )

    sums = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    assert expected.stdout.split()[0] == tree_digest(sums)
