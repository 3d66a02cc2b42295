import os
from pathlib import Path

import pytest

from shoal_runtime.storage.code_cache import code_directory, files_digest, prune
from shoal_runtime.storage.fetching import ModelFiles


def test_code_is_kept_by_key_in_a_directory_of_the_user(tmp_path: Path) -> None:
    made = code_directory(tmp_path / "cache", "compiled", "2.13", "cpu")

    assert made is not None
    assert [each.stat().st_mode & 0o777 for each in (made, made.parent)] == [0o700, 0o700]
    assert code_directory(tmp_path / "cache", "compiled", "2.13", "cpu") == made
    assert code_directory(tmp_path / "cache", "compiled", "2.14", "cpu") != made


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o750])
def test_a_directory_that_others_can_access_holds_no_code(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = code_directory(tmp_path, "engines", "key")
    assert made is not None
    made.chmod(mode)

    assert code_directory(tmp_path, "engines", "key") is None
    assert "event=code_cache_off kind=engines" in caplog.text


def test_a_link_is_not_followed_to_code(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "compiled").symlink_to(tmp_path / "elsewhere")

    assert code_directory(tmp_path, "compiled", "key") is None
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_cache_that_cannot_be_written_holds_no_code(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert code_directory(tmp_path / "file", "compiled", "key") is None


def test_a_digest_changes_with_the_files_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"1")
    (tmp_path / "handler.py").write_text("pass")
    directory, file = ModelFiles(tmp_path, "m"), ModelFiles(tmp_path, "m", "weights.bin")
    before = files_digest(directory), files_digest(file)

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "handler.pyc").touch()
    assert (files_digest(directory), files_digest(file)) == before

    os.utime(tmp_path / "handler.py", (1, 1))
    assert files_digest(directory) != before[0]
    assert files_digest(file) == before[1]

    (tmp_path / "weights.bin").write_bytes(b"22")
    assert files_digest(file) != before[1]


def code_of(tmp_path: Path, name: str, size: int, used_s: float) -> Path:
    """Make a directory of compiled code that no process uses."""
    directory = tmp_path / "compiled" / name
    (directory / "kernels").mkdir(parents=True)
    (directory / "kernels" / "one.so").write_bytes(b"1" * size)
    os.utime(directory, (used_s, used_s))
    return directory


def test_the_code_that_was_used_last_is_kept(tmp_path: Path) -> None:
    made = {
        name: code_of(tmp_path, name, size, used_s)
        for name, size, used_s in (("b", 40, 1), ("a", 40, 2), ("d", 10, 3), ("c", 40, 4))
    }

    prune(tmp_path / "compiled", 90)

    assert {name for name, directory in made.items() if directory.exists()} == {"a", "d", "c"}


def test_a_use_makes_code_the_last_used(tmp_path: Path) -> None:
    directory = code_directory(tmp_path, "compiled", "key")
    assert directory is not None
    os.utime(directory, (1, 1))

    code_directory(tmp_path, "compiled", "key")

    assert directory.stat().st_mtime > 1


def test_code_in_use_is_not_removed(tmp_path: Path) -> None:
    used = code_directory(tmp_path, "compiled", "key")
    assert used is not None
    (used / "kernel.so").write_bytes(b"1" * 50)
    os.utime(used, (1, 1))
    unused = code_of(tmp_path, "other", 50, used_s=2)

    prune(tmp_path / "compiled", 10)

    assert (used / "kernel.so").exists()
    assert not unused.exists()


def test_links_are_not_followed_to_remove_code(tmp_path: Path) -> None:
    elsewhere = code_of(tmp_path / "elsewhere", "a", 50, used_s=1)
    code_of(tmp_path, "b", 5, used_s=2)
    (tmp_path / "compiled" / "link").symlink_to(elsewhere)

    prune(tmp_path / "compiled", 0)

    assert [path.name for path in (tmp_path / "compiled").iterdir()] == ["link"]
    assert (elsewhere / "kernels" / "one.so").exists()
