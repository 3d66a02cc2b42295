"""Command ``shoal record``: record a proxy's requests, without payloads."""

import csv
import json
import sys

import click
from click import option

from shoal_proxy.commands.admin_client import AdminRequestError, InvalidAddressError, stream_lines
from shoal_schema.process.arguments import Number

# click leaves the lines after \b as they are.
_EXAMPLE = """\
\b
example:
  shoal record --from http://127.0.0.1:8079 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:8079 --objective-ms 30

The recording is CSV: arrived_s,rows,shape,deadline_ms. Ctrl-C ends it early; the lines written so far are complete.
"""


@click.command("record", epilog=_EXAMPLE)
@option("--from", "source", required=True, metavar="URL", help="admin port of a running proxy")
@option("--seconds", type=Number(0, 3600, min_open=True), default=30.0, help="duration in seconds")
@option("--json", "as_json", is_flag=True, help="print JSON, an object for each arrival")
def command(source: str, seconds: float, *, as_json: bool) -> int:
    """Record the requests that arrive at a running server, without payloads."""
    arrivals = 0
    try:
        # Without requests the proxy sends nothing until the recording ends.
        path = f"/v1/trace?seconds={seconds:g}"
        lines = iter(stream_lines(source, path, silent_s=seconds + 10))
        header = next(lines, "")
        # The header line arrives when the recording has begun.
        print(f"recording for {seconds:g} s", file=sys.stderr)  # noqa: T201
        _write("" if as_json else header)
        for line in lines:
            if as_json:
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
    print(f"{arrivals} arrivals in {seconds:g} s", file=sys.stderr)  # noqa: T201
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
