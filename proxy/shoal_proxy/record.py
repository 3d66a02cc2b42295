"""``shoal record``: write down what arrives at a running proxy, without payloads."""

import argparse
import csv
import json
import sys

from shoal_proxy.asking import AddressError, AskError, ask_lines
from shoal_schema.arguments import CommandParser, number

_EXAMPLE = """\
example:
  shoal record --from http://127.0.0.1:9090 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30

The recording is CSV: arrived_s,rows,shape,deadline_ms. Ctrl-C ends it early; what was written is whole.
"""
_MOST_S = 3600


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = CommandParser(
        "shoal record",
        description="Write down what arrives at a running server, without payloads.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--from", dest="source", required=True, metavar="URL", help="admin port of a running proxy")
    made.add_argument(
        "--seconds", type=number(0, _MOST_S, " seconds"), default=30.0, help=f"up to {_MOST_S}; default 30"
    )
    made.add_argument("--json", action="store_true", help="print JSON, an object for each arrival")
    return made


def run(options: argparse.Namespace) -> int:
    """Copy the recording to standard output as it comes; return the exit status."""
    arrivals = 0
    try:
        # A proxy at which nothing arrives is silent for as long as the recording takes.
        path = f"/v1/trace?seconds={options.seconds:g}"
        lines = iter(ask_lines(options.source, path, silent_s=options.seconds + 10))
        header = next(lines, "")
        # Its first line comes when it has begun: what arrives from here on is written down.
        print(f"recording for {options.seconds:g} s", file=sys.stderr)  # noqa: T201
        _write("" if options.json else header)
        for line in lines:
            _write(_as_json(header, line) if options.json else line)
            arrivals += 1
    except AskError as error:
        print(f"shoal: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, AddressError) else 1
    print(f"{arrivals} arrivals in {options.seconds:g} s", file=sys.stderr)  # noqa: T201
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _as_json(header: str, line: str) -> str:
    """Return a line of CSV as a line of JSON: numbers as such, an empty field as null."""
    row = zip(*csv.reader((header, line)), strict=True)
    return json.dumps({name: _value(name, text) for name, text in row}) + "\n"


def _value(name: str, text: str) -> str | float | None:
    if name == "shape":
        return text
    return json.loads(text) if text else None
