from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import InvalidInput
from shoal.files import load, plain


def test_paths_and_open_files_stand_for_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "picture.jpg").write_bytes(b"jpeg")
    (tmp_path / "value.json").write_text('{"a": 1}')
    np.save(tmp_path / "x.npy", np.ones(3))

    assert plain(tmp_path / "picture.jpg") == b"jpeg"
    assert plain(BytesIO(b"bytes")) == b"bytes"
    assert plain(StringIO("text")) == "text"
    assert plain({"q": tmp_path / "value.json", "n": [1, 2]}) == {"q": {"a": 1}, "n": [1, 2]}
    assert plain(["a", [tmp_path / "picture.jpg"]]) == ["a", [b"jpeg"]]
    assert plain(tmp_path / "x.npy").tolist() == [1, 1, 1]


def test_what_holds_no_file_is_passed_on_as_it_is() -> None:
    for item in ([1.0] * 1000, "text", b"bytes", np.ones(3), None):
        assert plain(item) is item


def test_what_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*nothing\.png: No such file"):
        load(tmp_path / "nothing.png")
    closed = (tmp_path / "closed").open("wb")
    closed.close()
    with pytest.raises(InvalidInput, match="cannot read"):
        plain(closed)


def test_a_file_that_was_read_already_is_not_sent_as_nothing() -> None:
    file = BytesIO(b"once")
    file.read()

    with pytest.raises(InvalidInput, match="at its end"):
        plain(file)
