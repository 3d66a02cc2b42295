"""Shards: every byte, row group and line is in one of them, and all workers compute the same."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.shards import (
    InputFile,
    Shard,
    begins_in,
    cut,
    digest,
    format_of,
    is_hidden,
    matching,
    own_order,
    split_pattern,
)
from shoal_runtime.offline.tables import lines_of
from shoal_schema.resource.offline import RowFormat

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=8)


def files(sizes: list[int], suffix: str = ".parquet") -> list[InputFile]:
    return [InputFile(f"f{number:03d}{suffix}", size, "1") for number, size in enumerate(sizes)]


@pytest.mark.parametrize("kind", [RowFormat.PARQUET, RowFormat.JSON_LINES, RowFormat.CSV])
@given(sizes=SIZES, shard_bytes=st.integers(1, 2000))
def test_the_shards_of_a_file_cover_it_once(kind: RowFormat, sizes: list[int], shard_bytes: int) -> None:
    given_files = files(sizes)
    shards = cut(given_files, kind, shard_bytes)

    assert [each.name for each in shards] == sorted({each.name for each in shards})
    for file in given_files:
        ours = [each for each in shards if each.files == (file,)]
        assert [each.start for each in ours] == [0, *(each.stop for each in ours[:-1])]
        assert ours[-1].stop == file.size_bytes
        if kind is RowFormat.CSV:
            assert len(ours) == 1


@given(sizes=SIZES, shard_bytes=st.integers(1, 2000), size=st.integers(0, 5000), data=st.data())
def test_a_replaced_file_changes_only_its_own_shards(
    sizes: list[int], shard_bytes: int, size: int, data: st.DataObject
) -> None:
    replaced = data.draw(st.integers(0, len(sizes) - 1))
    after = [size if number == replaced else each for number, each in enumerate(sizes)]
    name = files(sizes)[replaced].path
    was, now = (
        [each for each in cut(files(given_sizes), RowFormat.PARQUET, shard_bytes) if each.files[0].path != name]
        for given_sizes in (sizes, after)
    )
    assert was == now


@given(sizes=SIZES, shard_bytes=st.integers(1, 2000))
def test_small_files_share_shards_each_once(sizes: list[int], shard_bytes: int) -> None:
    shards = cut(files(sizes, ".jpg"), RowFormat.FILES, shard_bytes)

    assert [file for shard in shards for file in shard.files] == files(sizes, ".jpg")
    assert all(len(each.files) == 1 or each.size_bytes <= shard_bytes for each in shards)


@given(st.integers(0, 5000), st.integers(1, 2000), st.lists(st.integers(0, 5000), min_size=2, max_size=2))
def test_a_row_group_belongs_to_one_shard(size: int, shard_bytes: int, ends: list[int]) -> None:
    start, stop = sorted(min(end, size) for end in ends)
    shards = cut(files([size]), RowFormat.PARQUET, shard_bytes)

    assert sum(begins_in(each, start, stop) for each in shards) == 1


@given(
    lines=st.lists(st.text("ab \r", max_size=12), max_size=12),
    last_ends=st.booleans(),
    shard_bytes=st.integers(1, 40),
)
def test_a_line_belongs_to_one_shard(lines: list[str], last_ends: bool, shard_bytes: int) -> None:
    text = "\n".join(lines) + "\n" * last_ends
    whole = InputFile("rows.jsonl", len(text), "1")
    found = [
        line
        for shard in cut([whole], RowFormat.JSON_LINES, shard_bytes)
        for line in lines_of(io.BytesIO(text.encode()), shard)
    ]

    assert [line.strip() for line in found] == [line.strip().encode() for line in lines if line.strip()]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", ["a.csv", "b/c.csv", "b/d/e.csv", "b/x.txt"]),
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "b/c.csv", "b/d/e.csv"]),
        ("b/*", ["b/c.csv", "b/x.txt"]),
        ("b/**", ["b/c.csv", "b/d/e.csv", "b/x.txt"]),
        ("?.csv", ["a.csv"]),
        ("b/[cx].*", ["b/c.csv", "b/x.txt"]),
        ("b/[!c].*", ["b/x.txt"]),
        ("*.parquet", []),
        ("a.cs(v)", []),
    ],
)
def test_a_pattern_matches_these_files(pattern: str, found: list[str]) -> None:
    names = ["b/x.txt", "a.csv", "b/c.csv", "b/d/e.csv", "_SUCCESS", ".hidden/a.csv", "b/_log/z.csv"]

    assert [each.path for each in matching([InputFile(name, 1, "") for name in names], pattern)] == found


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/data/rows.csv", ("/data/rows.csv", "")),
        ("/data/*.csv", ("/data/", "*.csv")),
        ("/data/a*/b/*.csv", ("/data/", "a*/b/*.csv")),
        ("s3://bucket/in/**", ("s3://bucket/in/", "**")),
        ("*.csv", ("", "*.csv")),
    ],
)
def test_a_pattern_is_split_from_its_directory(path: str, parts: tuple[str, str]) -> None:
    assert split_pattern(path) == parts


def test_files_of_other_programs_are_hidden() -> None:
    assert is_hidden("_SUCCESS")
    assert is_hidden("a/.b/c")
    assert not is_hidden("a/b_c.d")


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.parquet", "b/c.PARQUET"], RowFormat.PARQUET),
        (["a.csv", "b.csv.gz"], RowFormat.CSV),
        (["a.jsonl", "b.ndjson", "c.jsonl.gz"], RowFormat.JSON_LINES),
        (["a.jpg", "b.png", "c"], RowFormat.FILES),
    ],
)
def test_names_determine_the_format(names: list[str], kind: RowFormat) -> None:
    assert format_of([InputFile(name, 1, "") for name in names], RowFormat.AUTO) is kind
    assert format_of([InputFile(name, 1, "") for name in names], RowFormat.FILES) is RowFormat.FILES


def test_several_formats_are_rejected_with_an_example_of_each() -> None:
    with pytest.raises(JobError, match=r"a\.csv \(CSV\), b\.parquet \(Parquet\)"):
        format_of([InputFile("a.csv", 1, ""), InputFile("b.parquet", 1, "")], RowFormat.AUTO)


@given(st.integers(0, 30), st.integers(1, 7))
def test_each_worker_starts_with_its_own_shards_and_has_all(count: int, workers: int) -> None:
    shards = cut(files([10] * count), RowFormat.PARQUET, 100)
    own: list[Shard] = []
    for worker in range(workers):
        order = own_order(shards, worker, workers)
        assert sorted(each.name for each in order) == [each.name for each in shards]
        own += order[: len([n for n in range(count) if n % workers == worker])]

    assert sorted(each.name for each in own) == [each.name for each in shards]


def test_the_digest_changes_with_name_size_and_content() -> None:
    known = digest([InputFile("a", 1, "x")])

    assert known == digest([InputFile("a", 1, "x")])
    assert (
        len(
            {
                known,
                digest([InputFile("b", 1, "x")]),
                digest([InputFile("a", 2, "x")]),
                digest([InputFile("a", 1, "y")]),
            }
        )
        == 4
    )
