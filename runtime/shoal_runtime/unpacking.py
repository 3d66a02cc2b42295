"""Archives, unpacked so that nothing lands outside the folder and nothing takes more than it may.

Python's own guards are not relied upon: those of some versions can be led astray by links (CVE-2025-4517 and its
kin). No link is ever made here: one that points to a file of the archive becomes that file once more. So a path
without `..` stays below the folder, whatever came before it.
"""

import bz2
import gzip
import lzma
import os
import posixpath
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Protocol

from shoal_runtime.errors import LoadError

TAR_SUFFIXES: Final = (".tar.gz", ".tgz", ".tar")
ZIP_SUFFIXES: Final = (".zip",)
MAR_SUFFIXES: Final = (".mar",)
"""TorchServe's, which may be either."""
ZIP_MAGIC: Final = b"PK\x03\x04"
CHUNK_BYTES: Final = 1024 * 1024
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Of a member's long name or extra headers, which tarfile reads into memory whole."""
MAX_ENTRY_BYTES: Final = 1024
"""Of a zip's directory per file that may be in it; zipfile reads it into memory whole."""
FREE_BYTES: Final = 64 * 1024 * 1024
"""What an archive may always unpack to, however small it is."""
MAX_LINKS_IN_A_ROW: Final = 16
_HEADERS: Final = frozenset({b"x", b"g", b"X", b"L", b"K"})
_MAGIC: Final[dict[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_BROKEN: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    # Which are also what they have not implemented, and what is nested too deeply.
    *(RuntimeError, ValueError, OverflowError),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What fetching a model may take.

    Args:
        max_bytes: of a download, and of all that an archive holds.
        max_files: files and folders in an archive.
        max_ratio: bytes unpacked for each byte of the archive.
        timeout_s: for download, check and unpacking together.
    """

    max_bytes: int = 128 * 1024**3
    max_files: int = 100_000
    max_ratio: float = 100.0
    timeout_s: float = 3600.0

    def check_bytes(self, count: int, what: str) -> None:
        """Raise LoadError when there are more."""
        if count > self.max_bytes:
            raise LoadError(f"{what} is over {self.max_bytes} bytes (SHOAL_MODEL_MAX_BYTES)")

    def too_many_files(self, name: str) -> LoadError:
        """Return what to say of an archive that holds more."""
        return LoadError(f"{name} holds over {self.max_files} files and folders (SHOAL_MODEL_MAX_FILES)")


@dataclass(slots=True)
class Meter:
    """Count what one archive, of `size` bytes, has unpacked to, and stop it in time."""

    name: str
    size: int
    limits: Limits
    deadline_s: float
    bytes: int = 0
    files: int = 0

    def count(self) -> None:
        """Count one more file or folder."""
        self.files += 1
        if self.files > self.limits.max_files:
            raise self.limits.too_many_files(self.name)

    def read(self, count: int) -> None:
        """Count bytes that were unpacked."""
        self.bytes += count
        self.limits.check_bytes(self.bytes, f"what {self.name} holds")
        ratio = self.limits.max_ratio
        if self.bytes > FREE_BYTES and self.bytes > self.size * ratio:
            raise LoadError(f"{self.name} unpacks to over {ratio:g} times its size (SHOAL_MODEL_MAX_RATIO)")
        check_time(self.limits, self.deadline_s)


def check_time(limits: Limits, deadline_s: float) -> None:
    """Raise LoadError when the model should be here by now."""
    if time.monotonic() > deadline_s:
        raise LoadError(f"fetching the model takes longer than {limits.timeout_s:g} s (SHOAL_MODEL_FETCH_TIMEOUT_S)")


def archive_stem(name: str) -> str | None:
    """Return the name without its archive suffix; None when it is not an archive's."""
    for suffix in (*TAR_SUFFIXES, *ZIP_SUFFIXES, *MAR_SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def unpack(path: Path, target: Path, name: str, limits: Limits, deadline_s: float) -> Path:
    """Unpack an archive, whose name tells its kind, into an empty folder; what a failure leaves there is not a model.

    Returns:
        The folder with the model: the target, or the one folder that the archive holds.

    Raises:
        LoadError: it is not an archive, takes more than it may, or a member is not a plain file in the folder.
    """
    meter = Meter(name, path.stat().st_size, limits, deadline_s)
    try:
        if _is_zip(path, name.lower()):
            _unzip(path, target, meter, limits)
        else:
            _untar(path, target, meter)
    except _BROKEN as error:
        raise LoadError(f"{name} cannot be unpacked: {error}") from None
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _is_zip(path: Path, name: str) -> bool:
    if not name.endswith(MAR_SUFFIXES):
        return name.endswith(ZIP_SUFFIXES)
    with path.open("rb") as file:
        return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC


def place_of(name: str) -> PurePosixPath:
    """Return where a member belongs, below the folder.

    Raises:
        LoadError: outside of it, or the name could be read in two ways.
    """
    path = PurePosixPath(name)
    plain = "\\" not in name and not any(ord(character) < 32 for character in name)
    if not plain or path.is_absolute() or ".." in path.parts or ":" in name.partition("/")[0]:
        raise _outside(name)
    return path


def _outside(name: str, why: str = "") -> LoadError:
    return LoadError(f"the archive's {name!r} {why}would land outside its folder")


class _Folder:
    """The files made so far. Names are checked, nothing is made twice, and no symbolic link is made at all."""

    def __init__(self, root: Path, meter: Meter) -> None:
        self._root = root.resolve()
        self._meter = meter

    def make(self, name: str) -> None:
        """Make a folder."""
        place = self._place(name)
        with _once(name):
            place.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, source: "_Readable", *, executable: bool) -> None:
        """Write a file."""
        place = self._place(name)
        with _once(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            file = place.open("xb")
        with file:
            while chunk := source.read(CHUNK_BYTES):
                file.write(chunk)
            if executable:
                os.fchmod(file.fileno(), 0o755)

    def repeat(self, name: str, target: PurePosixPath) -> None:
        """Give a file, which is there, another name; it takes no more room."""
        place, source = self._place(name), self._root / target
        if not source.is_file():
            raise LoadError(f"the archive's {name!r} is a link to what is not in it")
        with _once(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, place, follow_symlinks=False)

    def _place(self, name: str) -> Path:
        self._meter.count()
        place = self._root / place_of(name)
        # The file system is looked at too: nothing that is there already may lead elsewhere.
        if not place.resolve().is_relative_to(self._root):
            raise _outside(name)
        return place


@contextmanager
def _once(name: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise LoadError(f"the archive holds {name!r} twice") from None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Metered:
    """A stream whose bytes are counted as they are unpacked, also those that no file is made of."""

    stream: _Readable
    meter: Meter

    def read(self, size: int) -> bytes:
        chunk = self.stream.read(size)
        self.meter.read(len(chunk))
        return chunk


# zip


def _unzip(path: Path, target: Path, meter: Meter, limits: Limits) -> None:
    folder = _Folder(target, meter)
    with path.open("rb") as file:
        record = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # before all of it is in memory
        if record and record[zipfile._ECD_SIZE] > limits.max_files * MAX_ENTRY_BYTES:  # type: ignore[attr-defined]
            raise limits.too_many_files(path.name)
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                # zipfile cuts a name at its first NUL; whoever looked at the archive may have seen all of it.
                place_of(member.orig_filename)
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _outside(member.filename, "is a link or a device, and ")
            for member in archive.infolist():
                if member.is_dir():
                    folder.make(member.filename)
                    continue
                executable = bool((member.external_attr >> 16) & stat.S_IXUSR)
                with archive.open(member) as source:
                    folder.write(member.filename, _Metered(source, meter), executable=executable)


# tar


class _Member(tarfile.TarInfo):
    """A member whose headers are checked before tarfile takes them into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.size < 0 or (self.type in _HEADERS and self.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]  # tarfile's own hook for subclasses


def _untar(path: Path, target: Path, meter: Meter) -> None:
    folder = _Folder(target, meter)
    links: dict[PurePosixPath, PurePosixPath] = {}
    with path.open("rb") as file:
        stream: Any = _Metered(_decompressed(file), meter)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if member.isdir():
                    folder.make(member.name)
                elif member.issym() or member.islnk():
                    links[place_of(member.name)] = _target(member)
                elif content is not None:
                    folder.write(member.name, content, executable=bool(member.mode & stat.S_IXUSR))
                else:
                    raise LoadError(f"the archive's {member.name!r} is not a plain file, folder or link")
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
    for name, place in links.items():
        end = place
        for _ in range(MAX_LINKS_IN_A_ROW):
            end = links.get(end, end)
        if end in links:
            raise LoadError(f"the archive's {str(name)!r} is a link to itself, or over {MAX_LINKS_IN_A_ROW} links away")
        folder.repeat(str(name), end)


def _decompressed(file: IO[bytes]) -> _Readable:
    start = file.read(max(map(len, _MAGIC)))
    file.seek(0)
    opened = next((open_it for magic, open_it in _MAGIC.items() if start.startswith(magic)), None)
    return opened(file) if opened is not None else file


def _target(link: tarfile.TarInfo) -> PurePosixPath:
    """Return where a link leads, below the folder."""
    if link.linkname.startswith("/"):
        raise _outside(link.name)
    base = PurePosixPath(link.name).parent if link.issym() else PurePosixPath()
    return place_of(posixpath.normpath(base / link.linkname))
