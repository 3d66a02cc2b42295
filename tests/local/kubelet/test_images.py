import re

import pytest

from shoal_local.kubelet.images import (
    BadTableError,
    Image,
    UnknownImageError,
    command_line,
    default_table,
    find_image,
    parse_table,
)


@pytest.mark.parametrize(
    "name",
    [
        "shoal/proxy",
        "ghcr.io/someone/shoal/proxy:1.2",
        "localhost:5000/shoal/proxy",
        "ghcr.io/someone/shoal/proxy@sha256:" + "0" * 64,
        "ghcr.io/someone/shoal/proxy:1.2@sha256:" + "0" * 64,
    ],
)
def test_our_images_are_known_by_any_registry_and_tag(name: str) -> None:
    image = find_image(name, default_table("/bin/python"), "file")
    assert image.command == ["/bin/python", "-m", "shoal_proxy"]


def test_an_entry_of_the_whole_name_goes_before_one_of_its_last_part() -> None:
    table = parse_table({"web": {"command": ["a"]}, "x/web:1": {"command": ["b"]}})
    assert find_image("x/web:1", table, "file").command == ["b"]
    assert find_image("x/web:2", table, "file").command == ["a"]


def test_an_unknown_image_says_how_to_add_it() -> None:
    message = "x/web:1.*'web: .*' to /some/file"
    with pytest.raises(UnknownImageError, match=message):
        find_image("x/web:1", {}, "/some/file")


@pytest.mark.parametrize("entry", [None, "web", {"cmd": ["a"]}, {"command": "a b"}])
def test_a_broken_entry_is_named(entry: object) -> None:
    with pytest.raises(BadTableError, match=re.escape("image 'web'")):
        parse_table({"web": entry})


@pytest.mark.parametrize(
    ("command", "args", "line"),
    [
        ([], [], ["run", "default"]),
        ([], ["x"], ["run", "x"]),
        (["other"], [], ["other"]),
        (["other"], ["x"], ["other", "x"]),
    ],
)
def test_command_and_args_replace_those_of_the_image(command: list[str], args: list[str], line: list[str]) -> None:
    assert command_line(Image(["run"], ["default"]), command, args) == line
