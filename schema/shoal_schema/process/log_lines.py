"""Formats of log lines, for writers and readers."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Final, NamedTuple

TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
"""Format of a text line, for `logging`."""
MAX_TRACEBACK: Final = 8000
"""Last characters of a traceback to keep in JSON, as container runtimes split lines at 16 KiB."""
_BITS: Final = 64
_HEAD: Final = ("time", "level", "logger")
# Lines as parsed: text, and the last line of a command.
_LINE: Final = re.compile(r"\d\S+Z (?P<level>[A-Z]+) \S+ (?P<message>.*)", re.DOTALL)
_LAST_WORDS: Final = re.compile(r"(?:shoal[-_]\w+): (?P<message>.*)", re.DOTALL)
_ENDS: Final = "CRITICAL"
# Templates: fields, placeholders and values.
_NEXT_FIELD: Final = re.compile(r" (?=[A-Za-z][\w-]*=)")
_PLACE: Final = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_WORD: Final = re.compile(r"[A-Za-z0-9._:;/+@-]+")

Fields = dict[str, Any]


class Line(NamedTuple):
    """Level and message of a log line."""

    level: str
    message: str

    @property
    def is_last(self) -> bool:
        """Whether the line states why a process ended."""
        return self.level == _ENDS


def read(line: str) -> Line | None:
    """Parse a log line of a Shoal process, or the last line of a command.

    Log lines are text or JSON. None for any other line.
    """
    if line.startswith("{"):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and all(isinstance(record.get(name), str) for name in _HEAD):
                message = str(record.get("message", ""))
                if "event" in record:
                    fields = {name: value for name, value in record.items() if name not in (*_HEAD, "traceback")}
                    message = " ".join(f"{name}={word(str(value))}" for name, value in fields.items())
                return Line(record["level"], message)
        return None
    # A text line, else the last line of a command.
    if found := _LINE.fullmatch(line):
        return Line(found["level"], found["message"])
    found = _LAST_WORDS.fullmatch(line)
    return Line(_ENDS, found["message"]) if found else None


def word(text: str) -> str:
    """Quote an untrusted value for a log message as JSON, unless it is a single word."""
    return text if _WORD.fullmatch(text) else json.dumps(text)


def as_text(template: object, arguments: object = ()) -> str | None:
    """Return a message ``event=NAME key=value ...`` for a text line; None if it has no event.

    Values of several words are quoted, and fields without a value left out. What follows a line break, such as a
    traceback, stays as it is.

    Args:
        template: the format string of `logging`.
        arguments: values of the placeholders.
    """
    if not (isinstance(template, str) and template.startswith("event=") and isinstance(arguments, tuple)):
        return None
    used, parts, rest = 0, [], ""
    for part in _NEXT_FIELD.split(template):
        count = len([place for place in _PLACE.findall(part) if place != "%%"])
        # Without arguments, `logging` formats nothing.
        name, _, value = (part % arguments[used : used + count] if arguments else part).partition("=")
        used += count
        value, _, further = value.partition("\n")
        rest += f"\n{further}" if further else ""
        if value := value.strip():
            parts.append(f"{name}={value if _is_one_word(value) else json.dumps(value, ensure_ascii=False)}")
    return " ".join(parts) + rest


def _is_one_word(value: str) -> bool:
    """Return whether a value has no space, or is quoted by `word` or ``%r``."""
    return len(value.split()) == 1 or (len(value) > 1 and value[0] in "\"'" and value[-1] == value[0])


def as_json(time: str, level: str, logger: str, fields: Mapping[str, Any]) -> str:
    """Return a log line as a JSON object in ASCII."""
    head = dict(zip(_HEAD, (time, level, logger), strict=True))
    return json.dumps({**head, **{name: _plain(value) for name, value in fields.items()}}, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value that every JSON parser accepts: no unpaired surrogate, NaN, infinity or huge integer."""
    if value is None or (isinstance(value, float) and isfinite(value)):
        return value
    # Integers beyond 64 bits lose precision in most parsers.
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)
    return str(value).encode("utf-8", "backslashreplace").decode()


def fields_of(template: object, arguments: object = ()) -> Fields:
    """Return the fields of a message ``event=NAME key=value ... key=free text``; other text is ``message``.

    Fields are delimited in the template only: an argument cannot start or end a field.

    Args:
        template: the format string of `logging`, with ``%s`` placeholders.
        arguments: values of the placeholders.
    """
    if isinstance(template, str) and template.startswith("event=") and isinstance(arguments, tuple):
        with suppress(Exception):  # __str__ of an argument may raise anything
            return _fields(template, arguments)
    try:
        return {"message": str(template) % arguments if arguments else str(template)}
    except Exception as error:  # log the line all the same
        return {"message": f"{template!r:.1000} cannot be formatted: {type(error).__name__}"}


def _fields(template: str, arguments: tuple[Any, ...]) -> Fields:
    found: Fields = {}
    used = 0
    for part in _NEXT_FIELD.split(template):
        name, _, form = part.partition("=")
        places = [place for place in _PLACE.findall(form) if place != "%%"] if arguments else []
        # Two fields of one name, or one of a line's own fields: log the text as it is.
        if name in found or name in _HEAD:
            raise ValueError(name)
        # Each field consumes the arguments of its placeholders.
        own = arguments[used : used + len(places)]
        used += len(places)
        if [form] == places and form[-1] in "sr" and isinstance(own[0], str | int | float):
            # A field that is a single placeholder keeps the argument's type.
            found[name] = _unquoted(own[0]) if form == "%s" else own[0]
            continue
        text = (form % own if own else form).strip()
        is_number = all(place[-1] in "dfgeiu" for place in places) and _NUMBER.fullmatch(text)
        found[name] = json.loads(text) if is_number else _unquoted(text)
    if used != len(arguments) or " " in str(found["event"]):
        raise ValueError(template)
    return found


def _unquoted(value: Any) -> Any:
    """Undo the quoting of `word`."""
    if isinstance(value, str) and value.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(value))
    return value
