from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.unpacking import archive_stem, unpack

if TYPE_CHECKING:
    from pathlib import Path


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
def test_archives_are_told_by_their_suffix(name: str, stem: str | None) -> None:
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

    with pytest.raises(LoadError, match="outside its folder"):
        unpack(path, target, "m.zip")

    assert list(target.iterdir()) == []


def test_a_zip_cannot_hold_links(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")

    with pytest.raises(LoadError, match="outside its folder"):
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

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(path, target, "m.tar.gz")

    assert not (tmp_path / "a" / "evil").exists()


@pytest.mark.parametrize("name", ["m.tar.gz", "m.zip"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\3\4", b"\x1f\x8b\x08"])
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(tmp_path / name, tmp_path, name)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "m.tar.gz", {"a": bytes(range(256)) * 400})
    path.write_bytes(path.read_bytes()[:200])

    with pytest.raises(LoadError, match="cannot be unpacked"):
        unpack(path, tmp_path / "out", "m.tar.gz")
