import gzip
import io
import os
import stat
import tarfile
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.errors import LoadError
from shoal_runtime.storage import unpacking
from shoal_runtime.storage.unpacking import ArchiveLimits, archive_stem

FOREVER_S = float("inf")


def unpack(
    path: Path, target: Path, name: str, limits: ArchiveLimits | None = None, deadline_s: float = FOREVER_S
) -> Path:
    target.mkdir(exist_ok=True)
    return unpacking.unpack(path, target, name, limits or ArchiveLimits(), deadline_s)


def tar(path: Path, members: dict[str, bytes], *, link: tuple[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link is not None:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("cat.tar.gz", "cat"),
        ("cat.TGZ", "cat"),
        ("cat.tar", "cat"),
        ("cat.zip", "cat"),
        ("cat.pt2", None),
        (".zip", None),
    ],
)
def test_archives_are_recognized_by_their_suffix(name: str, stem: str | None) -> None:
    assert archive_stem(name) == stem


@pytest.mark.parametrize("make", [tar, zipped])
def test_files_are_unpacked(tmp_path: Path, make: type) -> None:
    name = "m.tar.gz" if make is tar else "m.zip"
    path = make(tmp_path / name, {"handler.py": b"a", "data/b": b"b"})
    target = tmp_path / "out"
    target.mkdir()

    folder = unpack(path, target, name)

    assert folder == target
    assert (folder / "handler.py").read_bytes() == b"a"
    assert (folder / "data" / "b").read_bytes() == b"b"


def test_the_only_folder_of_an_archive_is_the_model(tmp_path: Path) -> None:
    path = tar(tmp_path / "m.tar.gz", {"cat-1.0/handler.py": b"a"})

    assert unpack(path, tmp_path / "out", "m.tar.gz") == tmp_path / "out" / "cat-1.0"


@pytest.mark.parametrize("member", ["../evil", "/etc/evil", "a/../../evil", "C:\\evil", "..\\evil"])
def test_a_zip_cannot_reach_outside_its_folder(tmp_path: Path, member: str) -> None:
    path = zipped(tmp_path / "m.zip", {"ok": b"", member: b"x"})
    target = tmp_path / "a" / "out"
    target.mkdir(parents=True)

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(path, target, "m.zip")

    assert list(target.iterdir()) == []


def test_a_zip_cannot_hold_links(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(tmp_path / "m.zip", tmp_path, "m.zip")


@pytest.mark.parametrize(
    ("members", "link"),
    [
        ({"../evil": b"x"}, None),
        ({}, ("link", "/etc/passwd")),
        ({}, ("link", "../../outside")),
    ],
)
def test_a_tar_cannot_reach_outside_its_folder(
    tmp_path: Path, members: dict[str, bytes], link: tuple[str, str] | None
) -> None:
    path = tar(tmp_path / "m.tar.gz", members, link=link)
    target = tmp_path / "a" / "out"
    target.mkdir(parents=True)

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(path, target, "m.tar.gz")

    assert not (tmp_path / "a" / "evil").exists()


@pytest.mark.parametrize("name", ["m.tar.gz", "m.zip"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\3\4", b"\x1f\x8b\x08"])
def test_an_invalid_archive_is_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(tmp_path / name, tmp_path / "out", name)


def test_a_cut_archive_is_rejected(tmp_path: Path) -> None:
    path = tar(tmp_path / "m.tar.gz", {"a": bytes(range(256)) * 400})
    path.write_bytes(path.read_bytes()[:200])

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(path, tmp_path / "out", "m.tar.gz")


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"evil") -> tuple[object, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def tarred(path: Path, entries: list[tuple[object, bytes]]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            assert isinstance(info, tarfile.TarInfo)
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def beyond_the_longest_path(victim: str) -> list[tuple[object, bytes]]:
    """CVE-2025-4517: links whose real path is too long to be followed are taken at their word."""
    folder, entries, short = "d" * 247, [], ""
    long = ""
    for step in "abcdefghijklmnop":
        entries.append(entry(f"{long}{folder}", tarfile.DIRTYPE))
        entries.append(entry(f"{long}{step}", tarfile.SYMTYPE, folder))
        long, short = f"{long}{folder}/", f"{short}{step}/"
    entries.append(entry(f"{short}{'l' * 254}", tarfile.SYMTYPE, "../" * 16))
    entries.append(entry("escape", tarfile.SYMTYPE, f"{short}{'l' * 254}/../.."))
    entries.append(entry("flag", tarfile.LNKTYPE, f"escape/{victim}"))
    entries.append(entry("flag"))
    return entries


HOSTILE = {
    "too long a path": beyond_the_longest_path("victim"),
    "up": [entry("../victim")],
    "up from below": [entry("a/../../victim")],
    "absolute": [entry("/victim")],
    "through a link": [entry("d", tarfile.SYMTYPE, ".."), entry("d/../victim")],
    "into a linked folder": [entry("d", tarfile.SYMTYPE, "../.."), entry("d/victim")],
    "a chain of links": [
        entry("a", tarfile.SYMTYPE, "b"),
        entry("b", tarfile.SYMTYPE, "../.."),
        entry("a/victim"),
    ],
    "a link to itself": [entry("a", tarfile.SYMTYPE, "b"), entry("b", tarfile.SYMTYPE, "a")],
    "a link to a folder": [entry("d", tarfile.DIRTYPE), entry("a", tarfile.SYMTYPE, "d")],
    "a link to nothing": [entry("a", tarfile.SYMTYPE, "nothing")],
    "a hard link out": [entry("a", tarfile.LNKTYPE, "../../victim"), entry("a")],
    "an absolute hard link": [entry("a", tarfile.LNKTYPE, "/etc/passwd")],
    "over a link": [entry("a", tarfile.SYMTYPE, "../../victim"), entry("a")],
    "twice": [entry("a"), entry("a")],
    "below a file": [entry("a"), entry("a/b")],
    "over a folder": [entry("a/b"), entry("a")],
    "a device": [entry("a", tarfile.CHRTYPE)],
    "a disk": [entry("a", tarfile.BLKTYPE)],
    "a pipe": [entry("a", tarfile.FIFOTYPE)],
    "a backslash": [entry("..\\victim")],
    "a control character": [entry("a\nb")],
    "a drive": [entry("C:victim")],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar_changes_nothing_outside_its_folder(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"safe")
    path = tarred(tmp_path / "m.tar.gz", HOSTILE[kind])
    target = tmp_path / "a" / "out"
    target.mkdir(parents=True)

    with pytest.raises(LoadError, match="the archive"):
        unpack(path, target, "m.tar.gz")

    assert victim.read_bytes() == b"safe"
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a", path, victim])
    assert not any(each.is_symlink() for each in target.rglob("*"))


NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", ""]), min_size=1, max_size=4).map("/".join)
ENTRIES = st.lists(
    st.builds(
        entry,
        NAMES,
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
        NAMES,
    ),
    max_size=6,
)


@given(ENTRIES)
def test_no_tar_changes_anything_outside_its_folder(entries: list[tuple[object, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name)
        path = tarred(outside / "m.tar.gz", entries)
        target = outside / "x" / "y" / "out"
        target.mkdir(parents=True)
        try:
            unpack(path, target, "m.tar.gz")
        except LoadError:
            pass
        else:
            assert not any(each.is_symlink() for each in target.rglob("*"))
        assert sorted(outside.rglob("*")) == sorted(
            [outside / "x", outside / "x" / "y", target, *target.rglob("*"), path]
        )


def test_links_to_files_of_the_archive_become_those_files(tmp_path: Path) -> None:
    entries = [
        entry("now.bin", tarfile.SYMTYPE, "current/weights.bin"),
        entry("v1/weights.bin", content=b"weights"),
        entry("current/weights.bin", tarfile.SYMTYPE, "../v1/weights.bin"),
        entry("same.bin", tarfile.LNKTYPE, "v1/weights.bin"),
    ]
    target = unpack(tarred(tmp_path / "m.tar.gz", entries), tmp_path / "out", "m.tar.gz")

    for name in ("now.bin", "v1/weights.bin", "current/weights.bin", "same.bin"):
        assert (target / name).read_bytes() == b"weights"
        assert not (target / name).is_symlink()


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w"])
def test_a_tar_is_read_however_it_is_compressed(tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / "m.tar", mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo("./run.sh")
        info.size, info.mode = 4, 0o4755
        archive.addfile(info, io.BytesIO(b"true"))

    target = unpack(tmp_path / "m.tar", tmp_path / "out", "m.tar")

    assert (target / "run.sh").read_bytes() == b"true"
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["handler.py\0.txt", "a\0"])
def test_a_zip_s_names_hide_nothing(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "m.zip", {name.replace("\0", "!"): b"x"})
    path.write_bytes(path.read_bytes().replace(b"!", b"\0"))

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(path, tmp_path / "out", "m.zip")


def test_a_zip_holds_no_name_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        archive.writestr("handler.py", "good")
        archive.writestr("./handler.py", "evil")

    with pytest.raises(LoadError, match="twice"):
        unpack(tmp_path / "m.zip", tmp_path / "out", "m.zip")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_a_zip_holds_plain_files_only(tmp_path: Path, kind: int) -> None:
    info = zipfile.ZipInfo("a")
    info.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(tmp_path / "m.zip", tmp_path / "out", "m.zip")


def deflated(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("make", [tar, deflated])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (ArchiveLimits(max_bytes=50_000, max_ratio=1e9), r"exceeds 50000 bytes \(SHOAL_MODEL_MAX_BYTES\)"),
        (ArchiveLimits(max_ratio=10), r"unpacks to more than 10 times its size \(SHOAL_MODEL_MAX_RATIO\)"),
        (ArchiveLimits(max_files=2, max_ratio=1e9), r"has more than 2 files and directories \(SHOAL_MODEL_MAX_FILES\)"),
    ],
)
def test_an_archive_that_takes_too_much_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: type, limits: ArchiveLimits, message: str
) -> None:
    monkeypatch.setattr(unpacking, "FREE_BYTES", 1000)
    name = "m.tar.gz" if make is tar else "m.zip"
    path = make(tmp_path / name, {str(index): bytes(30_000) for index in range(3)})

    with pytest.raises(LoadError, match=message):
        unpack(path, tmp_path / "out", name, limits)

    written = sum(each.stat().st_size for each in (tmp_path / "out").iterdir())
    assert written <= limits.max_bytes


def test_what_lies_between_the_members_counts_too(tmp_path: Path) -> None:
    """A tar may hide zeros without end where no file is made of them."""
    info = tarfile.TarInfo("a")
    info.size = 10**15
    with gzip.open(tmp_path / "lies.tar.gz", "wb") as file:
        file.write(info.tobuf() + bytes(3_000_000))

    with pytest.raises(LoadError, match="SHOAL_MODEL_MAX_BYTES"):
        unpack(tmp_path / "lies.tar.gz", tmp_path / "out", "m.tar.gz", ArchiveLimits(max_bytes=2_000_000))


def test_a_zip_that_lies_about_its_sizes_is_stopped(tmp_path: Path) -> None:
    path = deflated(tmp_path / "m.zip", {"a": bytes(300_000)})
    size = (300_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))

    with pytest.raises(LoadError, match=r"cannot be unpacked|SHOAL_MODEL_MAX_BYTES"):
        unpack(path, tmp_path / "out", "m.zip", ArchiveLimits(max_bytes=1000))

    assert sum(each.stat().st_size for each in (tmp_path / "out").iterdir()) <= 1000


def test_a_zip_s_directory_is_not_read_whole_when_it_is_too_long(tmp_path: Path) -> None:
    path = zipped(tmp_path / "m.zip", {f"{index:0200}": b"" for index in range(100)})

    with pytest.raises(LoadError, match="has more than 10 files"):
        unpack(path, tmp_path / "out", "m.zip", ArchiveLimits(max_files=10))

    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_long_header_is_not_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, 10**12
    (tmp_path / "m.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(tmp_path / "m.tar", tmp_path / "out", "m.tar")


def test_headers_upon_headers_are_rejected(tmp_path: Path) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = b"x", 0
    (tmp_path / "m.tar").write_bytes(info.tobuf() * 5000)

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(tmp_path / "m.tar", tmp_path / "out", "m.tar")


@pytest.mark.parametrize("make", [tar, zipped])
def test_unpacking_ends_when_its_time_is_up(tmp_path: Path, make: type) -> None:
    name = "m.tar.gz" if make is tar else "m.zip"
    path = make(tmp_path / name, {"a": b"content"})

    with pytest.raises(LoadError, match=r"longer than 3600 s \(SHOAL_MODEL_FETCH_TIMEOUT_S\)"):
        unpack(path, tmp_path / "out", name, deadline_s=time.monotonic() - 1)


def test_a_link_that_is_there_already_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path, tmp_path / "out" / "d")

    with pytest.raises(LoadError, match="outside its directory"):
        unpack(tar(tmp_path / "m.tar.gz", {"d/evil": b"x"}), tmp_path / "out", "m.tar.gz")
