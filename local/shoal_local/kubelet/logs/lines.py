"""From the lines of a log file to what a caller asked to see of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self


class BadQueryError(Exception):
    """The caller's parameters mean nothing; the message says which."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show of a log."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: str = ""
    """Time as the log writes it; '' shows all."""

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> Self:
        """Read the query of the log subresource.

        Raises:
            BadQueryError: a number is none.
        """
        since = _since(query, now)
        return cls(
            follow=query.get("follow") == "true",
            previous=query.get("previous") == "true",
            timestamps=query.get("timestamps") == "true",
            tail_lines=_number(query, "tailLines"),
            limit_bytes=_number(query, "limitBytes"),
            since=since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") if since else "",
        )


def _since(query: Mapping[str, str], now: datetime) -> datetime | None:
    seconds = _number(query, "sinceSeconds")
    if seconds is not None:
        return now - timedelta(seconds=seconds)
    if text := query.get("sinceTime"):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise BadQueryError(f"sinceTime must be a time such as 2026-01-31T12:00:00Z, not {text!r}") from None
    return None


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise BadQueryError(f"{name} must be a whole number, 0 or more, not {text!r}")
    return int(text)


def shown(lines: Iterable[bytes], wanted: Wanted) -> Iterator[bytes]:
    """Yield the texts of log lines, each with its newline if the container wrote one."""
    for line in lines:
        time, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if time.decode(errors="replace") < wanted.since:
            continue
        end = b"" if tag == b"P" else b"\n"
        yield (time + b" " + text if wanted.timestamps else text).removesuffix(b"\n") + end
