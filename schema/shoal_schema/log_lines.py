"""What a line of the log says, in either form: for those who write it and for those who read it."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final, NamedTuple

TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
"""A line in text, as `logging` writes it."""
MAX_TRACEBACK: Final = 8000
"""Characters of a traceback, its last, in JSON: container runtimes cut lines at 16 KiB."""
_BITS: Final = 64
_HEAD: Final = ("time", "level", "logger")
_LINE: Final = re.compile(r"\d\S+Z (?P<level>[A-Z]+) \S+ (?P<message>.*)", re.DOTALL)
_LAST_WORDS: Final = re.compile(r"(?:shoal[-_]\w+): (?P<message>.*)", re.DOTALL)
_ENDS: Final = "CRITICAL"
_NEXT_FIELD: Final = re.compile(r" (?=[A-Za-z][\w-]*=)")
_PLACE: Final = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_WORD: Final = re.compile(r"[A-Za-z0-9._:;/+@-]+")

Fields = dict[str, Any]


class Line(NamedTuple):
    """What a line says, without when and where."""

    level: str
    message: str

    @property
    def is_last(self) -> bool:
        """Return whether a process says with it why it ends."""
        return self.level == _ENDS


def read(line: str) -> Line | None:
    """Return what a line says that a process of ours wrote, in either form, or a command as its last; else None."""
    if line.startswith("{"):
        return _read_json(line)
    if found := _LINE.fullmatch(line):
        return Line(found["level"], found["message"])
    found = _LAST_WORDS.fullmatch(line)
    return Line(_ENDS, found["message"]) if found else None


def _read_json(line: str) -> Line | None:
    with suppress(ValueError, RecursionError):
        said = json.loads(line)
        if isinstance(said, dict) and all(isinstance(said.get(name), str) for name in _HEAD):
            return Line(said["level"], _as_message(said))
    return None


def _as_message(said: Mapping[str, Any]) -> str:
    if "event" not in said:
        return str(said.get("message", ""))
    told = {name: value for name, value in said.items() if name not in (*_HEAD, "traceback")}
    return " ".join(f"{name}={word(str(value))}" for name, value in told.items())


def word(text: str) -> str:
    """Return what somebody else chose as a value in a message: as it is if it is a word, else quoted as JSON."""
    return text if _WORD.fullmatch(text) else json.dumps(text)


def as_json(time: str, level: str, logger: str, fields: Mapping[str, Any]) -> str:
    """Return a line in JSON: an object in ASCII, whatever the values hold."""
    head = dict(zip(_HEAD, (time, level, logger), strict=True))
    return json.dumps({**head, **{name: _plain(value) for name, value in fields.items()}}, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value as every reader of JSON takes it: no half of a surrogate pair, no number that is none."""
    if value is None or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)
    return str(value).encode("utf-8", "backslashreplace").decode()


def fields_of(template: object, arguments: object = ()) -> Fields:
    """Return the fields of ``event=NAME key=value ... key=free text``, else all of it as ``message``.

    Fields are where the template has them: nothing that an argument holds makes one, or ends one.

    Args:
        template: what `logging` was given, with places as ``%s``.
        arguments: for those.
    """
    if isinstance(template, str) and template.startswith("event=") and isinstance(arguments, tuple):
        with suppress(Exception):  # whatever the text of an argument is made by
            return _fields(template, arguments)
    return {"message": _filled(template, arguments)}


def _fields(template: str, arguments: tuple[Any, ...]) -> Fields:
    found: Fields = {}
    used = 0
    for part in _NEXT_FIELD.split(template):
        name, _, form = part.partition("=")
        places = [place for place in _PLACE.findall(form) if place != "%%"] if arguments else []
        if name in found or name in _HEAD:
            raise ValueError(name)
        found[name] = _value(form, places, arguments[used : used + len(places)])
        used += len(places)
    if used != len(arguments) or " " in str(found["event"]):
        raise ValueError(template)
    return found


def _value(form: str, places: Sequence[str], arguments: tuple[Any, ...]) -> Any:
    """Return one field's value: a number where it is written as one, a text without the quotes around it."""
    if [form] == places and form[-1] in "sr" and isinstance(arguments[0], str | int | float):
        return _unquoted(arguments[0]) if form == "%s" else arguments[0]
    text = (form % arguments if arguments else form).strip()
    is_number = all(place[-1] in "dfgeiu" for place in places) and _NUMBER.fullmatch(text)
    return json.loads(text) if is_number else _unquoted(text)


def _unquoted(value: Any) -> Any:
    """Return what `word` has quoted as it was."""
    if isinstance(value, str) and value.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(value))
    return value


def _filled(template: object, arguments: object) -> str:
    try:
        return str(template) % arguments if arguments else str(template)
    except Exception as error:  # a line all the same: it may be of a failure
        return f"{template!r:.1000} cannot be told: {type(error).__name__}"
