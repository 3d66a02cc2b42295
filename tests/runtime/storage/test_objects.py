"""What the library of object stores may raise that no server in tests/interop makes it raise."""

from typing import Any

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.objects import BucketObjects


class PanicException(BaseException):
    """As Rust's are, by name and module; the library's own cannot be made from here."""


PanicException.__module__ = "pyo3_runtime"


def test_a_panic_of_the_library_is_a_rejection_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value: s3cret-key")

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-key")
    monkeypatch.setattr("obstore.list", panic)
    with pytest.raises(LoadError, match=r"s3://b/c/ cannot be read: .*\*\*\*. Check AWS_ACCESS_KEY_ID"):
        BucketObjects(None, "c/", "s3://b/c/").list(1)
