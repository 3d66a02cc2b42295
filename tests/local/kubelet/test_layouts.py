"""Image volumes: an image's files, from an OCI layout in a directory."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from shoal_local.kubelet.images import UnknownImageError, find_layout, parse_table
from shoal_local.kubelet.volumes import unpack


def layer(**files: str | None) -> bytes:
    """Return a layer of files by name (``__`` is a slash); None is a symbolic link to the machine's root."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            if text is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/"
            member.size = len(text or "")
            archive.addfile(member, io.BytesIO((text or "").encode()))
    return raw.getvalue()


def layout(directory: Path, *layers: bytes, indexed: bool = False) -> Path:
    """Write a layout as skopeo and buildah do."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    found = blob(json.dumps({"layers": [blob(each) for each in layers]}).encode())
    if indexed:
        other = {"digest": "sha256:" + "0" * 64, "platform": {"architecture": "s390x"}}
        found = blob(json.dumps({"manifests": [other, found]}).encode())
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (directory / "index.json").write_text(json.dumps({"manifests": [found]}))
    return directory


def files_in(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", [".wh...", "a__.wh..", ".wh."])
def test_a_mark_that_leads_up_is_refused_and_takes_nothing_away(tmp_path: Path, name: str) -> None:
    (tmp_path / "neighbour").write_text("kept")

    with pytest.raises(OSError, match="not a valid OCI layout"):
        unpack(layout(tmp_path / "layout", layer(**{name: ""})), tmp_path / "made")

    assert (tmp_path / "neighbour").read_text() == "kept"


@pytest.mark.parametrize("index", ['{"manifests": []}', '{"manifests": 7}', "7", '{"layers": 7}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: str) -> None:
    (layout(tmp_path / "layout", layer(a="1")) / "index.json").write_text(index)

    with pytest.raises(OSError, match="is not a valid OCI layout"):
        unpack(tmp_path / "layout", tmp_path / "made")


@pytest.mark.parametrize("indexed", [False, True])
def test_layers_lie_over_one_another_and_take_away_what_they_mark(tmp_path: Path, indexed: bool) -> None:
    first = layer(a="1", b="1", sub__c="1", sub__d="1", old__e="1")
    marks = {".wh.a": "", "sub__.wh.c": "", "old__f": "2", "old__.wh..wh..opq": ""}
    second = gzip.compress(layer(b="2", **marks))
    made = tmp_path / "made"
    unpack(layout(tmp_path / "layout", first, second, indexed=indexed), made)

    assert files_in(made) == {"b": "2", "sub/d": "1", "old/f": "2"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    unpack(tmp_path / "nowhere", tmp_path / "made")

    assert files_in(tmp_path / "made") == {}


@pytest.mark.parametrize(
    "bad", [layer(**{"..__out": "x"}), layer(**{"..__.wh.kept": ""}), layer(out=None), b"no tar at all"]
)
def test_a_layer_that_leads_out_of_the_image_or_is_none_is_refused_and_nothing_is_left(
    tmp_path: Path, bad: bytes
) -> None:
    (tmp_path / "kept").write_text("kept")
    with pytest.raises(OSError, match="not a valid OCI layout"):
        unpack(layout(tmp_path / "layout", bad), tmp_path / "made")

    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_blob_that_differs_from_its_digest_is_rejected(tmp_path: Path) -> None:
    made = layout(tmp_path / "layout", layer(a="1"))
    for path in (made / "blobs" / "sha256").iterdir():
        path.write_bytes(path.read_bytes() + b" ")

    with pytest.raises(OSError, match=r"not a valid OCI layout.*sha256"):
        unpack(made, tmp_path / "made")


def test_an_image_is_found_by_its_name_or_said_how_to_add() -> None:
    table = parse_table({"cat": {"layout": "/layouts/cat"}, "web": {"command": ["web"]}})
    assert find_layout("registry:5000/team/cat:1", table, "images.yaml") == "/layouts/cat"
    for name in ("registry/dog:1", "web"):
        with pytest.raises(UnknownImageError, match=r"skopeo copy docker://.* oci:DIR.*layout: DIR.*images.yaml"):
            find_layout(name, table, "images.yaml")
