"""Unpacking of archives within one directory and within limits.

Python's own protection is defeated by links in several versions (CVE-2025-4517 and related), so it is not relied upon.
No symbolic link is created: a link to a file of the archive becomes a hard link. A path without `..` therefore always
stays below the directory.
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
"""TorchServe's format, which may be either."""
ZIP_MAGIC: Final = b"PK\x03\x04"
CHUNK_BYTES: Final = 1024 * 1024
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Limit of a member's long name or extra headers, which tarfile reads into memory."""
MAX_ENTRY_BYTES: Final = 1024
"""Limit of a zip's directory per allowed file; zipfile reads it into memory."""
FREE_BYTES: Final = 64 * 1024 * 1024
"""Unpacked size that is allowed for any archive, even a small one."""
MAX_LINKS_IN_A_ROW: Final = 16
_HEADERS: Final = frozenset({b"x", b"g", b"X", b"L", b"K"})
_MAGIC: Final[dict[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_BROKEN: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    # Raised for features that are not implemented, and for deep nesting.
    *(RuntimeError, ValueError, OverflowError),
)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of the files of a model: size, number, compression ratio and time."""

    max_bytes: int = 128 * 1024**3
    """Of a download, and of the content of an archive."""
    max_files: int = 100_000
    """Files and directories in an archive."""
    max_ratio: float = 100.0
    """Unpacked bytes per byte of the archive."""
    timeout_s: float = 3600.0
    """Of download, check and unpacking together."""

    def check_bytes(self, count: int, what: str) -> None:
        """Raise LoadError if ``count`` exceeds the limit of bytes."""
        if count > self.max_bytes:
            raise LoadError(f"{what} exceeds {self.max_bytes} bytes (SHOAL_MODEL_MAX_BYTES)")

    def too_many_files(self, name: str) -> LoadError:
        """Return the error for an archive or directory with too many files."""
        return LoadError(f"{name} has more than {self.max_files} files and directories (SHOAL_MODEL_MAX_FILES)")


@dataclass(slots=True)
class ArchiveMeter:
    """Counter of the unpacked content of an archive of `size` bytes, which enforces the limits."""

    name: str
    size: int
    limits: ArchiveLimits
    deadline_s: float
    bytes: int = 0
    files: int = 0

    def count(self) -> None:
        """Count a file or directory; raise LoadError beyond the limit."""
        self.files += 1
        if self.files > self.limits.max_files:
            raise self.limits.too_many_files(self.name)

    def read(self, count: int) -> None:
        """Count unpacked bytes; raise LoadError beyond the limits of size, ratio or time."""
        self.bytes += count
        self.limits.check_bytes(self.bytes, f"the content of {self.name}")
        ratio = self.limits.max_ratio
        if self.bytes > FREE_BYTES and self.bytes > self.size * ratio:
            raise LoadError(f"{self.name} unpacks to more than {ratio:g} times its size (SHOAL_MODEL_MAX_RATIO)")
        check_time(self.limits, self.deadline_s)


def check_time(limits: ArchiveLimits, deadline_s: float) -> None:
    """Raise LoadError if ``deadline_s``, in monotonic seconds, has passed."""
    if time.monotonic() > deadline_s:
        raise LoadError(f"fetching the model takes longer than {limits.timeout_s:g} s (SHOAL_MODEL_FETCH_TIMEOUT_S)")


def archive_stem(name: str) -> str | None:
    """Return a file name without its archive suffix; None for a file that is not an archive."""
    for suffix in (*TAR_SUFFIXES, *ZIP_SUFFIXES, *MAR_SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def unpack(path: Path, target: Path, name: str, limits: ArchiveLimits, deadline_s: float) -> Path:
    """Unpack an archive into an empty directory, whose content is undefined after an error.

    Args:
        path: archive file.
        target: empty directory.
        name: file name whose suffix determines the format.
        limits: limits of the content.
        deadline_s: deadline in monotonic seconds.

    Returns:
        The model's directory: the target, or the only directory in the archive.

    Raises:
        LoadError: the file is not an archive, exceeds a limit, or has a member that is not a plain file in the target.
    """
    meter = ArchiveMeter(name, path.stat().st_size, limits, deadline_s)
    is_zip = name.lower().endswith(ZIP_SUFFIXES)
    if name.lower().endswith(MAR_SUFFIXES):
        with path.open("rb") as file:
            is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    try:
        if is_zip:
            _unzip(path, target, meter, limits)
        else:
            _untar(path, target, meter)
    except _BROKEN as error:
        raise LoadError(f"{name} cannot be unpacked: {error}") from None
    # Many archives contain one directory with the model.
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def place_of(name: str) -> PurePosixPath:
    """Return the path of an archive member, relative to the directory.

    Raises:
        LoadError: the path is outside the directory, or ambiguous.
    """
    path = PurePosixPath(name)
    plain = "\\" not in name and not any(ord(character) < 32 for character in name)
    if not plain or path.is_absolute() or ".." in path.parts or ":" in name.partition("/")[0]:
        raise _outside(name)
    return path


def _outside(name: str, why: str = "") -> LoadError:
    return LoadError(f"the archive's {name!r} {why}would be outside its directory")


class _Directory:
    """Writer of unpacked files that checks names and never overwrites a file."""

    def __init__(self, root: Path, meter: ArchiveMeter) -> None:
        self._root = root.resolve()
        self._meter = meter

    def make(self, name: str) -> None:
        place = self._place(name)
        with _once(name):
            place.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, source: "_Readable", *, executable: bool) -> None:
        place = self._place(name)
        with _once(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            file = place.open("xb")
        with file:
            while chunk := source.read(CHUNK_BYTES):
                file.write(chunk)
            # No other permissions are kept.
            if executable:
                os.fchmod(file.fileno(), 0o755)

    def repeat(self, name: str, target: PurePosixPath) -> None:
        """Create another name for an unpacked file, as a hard link."""
        place, source = self._place(name), self._root / target
        if not source.is_file():
            raise LoadError(f"the archive's {name!r} is a link to a file that is not in it")
        with _once(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, place, follow_symlinks=False)

    def _place(self, name: str) -> Path:
        self._meter.count()
        place = self._root / place_of(name)
        # A second check, on the file system: no existing path may lead elsewhere.
        if not place.resolve().is_relative_to(self._root):
            raise _outside(name)
        return place


@contextmanager
def _once(name: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise LoadError(f"the archive contains {name!r} twice") from None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Metered:
    """Stream that counts all unpacked bytes, including those not written to a file."""

    stream: _Readable
    meter: ArchiveMeter

    def read(self, size: int) -> bytes:
        chunk = self.stream.read(size)
        self.meter.read(len(chunk))
        return chunk


# zip


def _unzip(path: Path, target: Path, meter: ArchiveMeter, limits: ArchiveLimits) -> None:
    directory = _Directory(target, meter)
    with path.open("rb") as file:
        # Checked before zipfile reads the whole directory of the archive into memory.
        record = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        if record and record[zipfile._ECD_SIZE] > limits.max_files * MAX_ENTRY_BYTES:  # type: ignore[attr-defined]
            raise limits.too_many_files(path.name)
        with zipfile.ZipFile(file) as archive:
            # All names are checked before the first file is written.
            for member in archive.infolist():
                # zipfile cuts a name at its first NUL, while other tools show all of it.
                place_of(member.orig_filename)
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _outside(member.filename, "is a link or a device, and ")
            for member in archive.infolist():
                if member.is_dir():
                    directory.make(member.filename)
                    continue
                executable = bool((member.external_attr >> 16) & stat.S_IXUSR)
                with archive.open(member) as source:
                    directory.write(member.filename, _Metered(source, meter), executable=executable)


# tar


class _Member(tarfile.TarInfo):
    """Archive member whose headers are checked before tarfile reads them into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.size < 0 or (self.type in _HEADERS and self.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header has {self.size} bytes; the limit is {MAX_HEADER_BYTES}")
        return super()._proc_member(archive)  # type: ignore[misc]  # tarfile's own hook for subclasses


def _untar(path: Path, target: Path, meter: ArchiveMeter) -> None:
    directory = _Directory(target, meter)
    links: dict[PurePosixPath, PurePosixPath] = {}
    with path.open("rb") as file:
        start = file.read(max(map(len, _MAGIC)))
        file.seek(0)
        opened = next((open_it for magic, open_it in _MAGIC.items() if start.startswith(magic)), None)
        stream: Any = _Metered(opened(file) if opened is not None else file, meter)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if member.isdir():
                    directory.make(member.name)
                elif member.issym() or member.islnk():
                    if member.linkname.startswith("/"):
                        raise _outside(member.name)
                    # Symbolic links are relative to their directory, hard links to the archive.
                    base = PurePosixPath(member.name).parent if member.issym() else PurePosixPath()
                    links[place_of(member.name)] = place_of(posixpath.normpath(base / member.linkname))
                elif content is not None:
                    directory.write(member.name, content, executable=bool(member.mode & stat.S_IXUSR))
                else:
                    raise LoadError(f"the archive's {member.name!r} is not a plain file, directory or link")
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all members in memory
    # Links to links are followed to their file.
    for name, place in links.items():
        end = place
        for _ in range(MAX_LINKS_IN_A_ROW):
            end = links.get(end, end)
        if end in links:
            raise LoadError(
                f"the archive's {str(name)!r} is a link to itself, or a chain of more than {MAX_LINKS_IN_A_ROW} links"
            )
        directory.repeat(str(name), end)
