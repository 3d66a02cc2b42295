"""Command ``shoal record``: record a proxy's requests, without payloads."""

import argparse
import csv
import json
import sys

from shoal_proxy.commands.admin_client import AdminRequestError, InvalidAddressError, stream_lines
from shoal_schema.process.arguments import CommandParser, number

_EXAMPLE = """\
example:
  shoal record --from http://127.0.0.1:9090 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30

The recording is CSV: arrived_s,rows,shape,deadline_ms. Ctrl-C ends it early; the lines written so far are complete.
"""
_MAX_S = 3600


def record_parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``shoal record``."""
    made = CommandParser(
        "shoal record",
        description="Record the requests that arrive at a running server, without payloads.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--from", dest="source", required=True, metavar="URL", help="admin port of a running proxy")
    made.add_argument("--seconds", type=number(0, _MAX_S, " seconds"), default=30.0, help=f"up to {_MAX_S}; default 30")
    made.add_argument("--json", action="store_true", help="print JSON, an object for each arrival")
    return made


def run(options: argparse.Namespace) -> int:
    """Copy the proxy's recording to standard output; return the exit status."""
    arrivals = 0
    try:
        # Without requests the proxy sends nothing until the recording ends.
        path = f"/v1/trace?seconds={options.seconds:g}"
        lines = iter(stream_lines(options.source, path, silent_s=options.seconds + 10))
        header = next(lines, "")
        # The header line arrives when the recording has begun.
        print(f"recording for {options.seconds:g} s", file=sys.stderr)  # noqa: T201
        _write("" if options.json else header)
        for line in lines:
            if options.json:
                # Numbers stay numbers, empty fields become null; a shape is text.
                row = zip(*csv.reader((header, line)), strict=True)
                document = {name: text if name == "shape" else json.loads(text) if text else None for name, text in row}
                line = json.dumps(document) + "\n"  # noqa: PLW2901
            _write(line)
            arrivals += 1
    except AdminRequestError as error:
        print(f"shoal: {error}", file=sys.stderr)  # noqa: T201
        # 2 for wrong arguments, 1 for a failed request, as in the other commands.
        return 2 if isinstance(error, InvalidAddressError) else 1
    print(f"{arrivals} arrivals in {options.seconds:g} s", file=sys.stderr)  # noqa: T201
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
