"""``python -m shoal_proxy record``: write down what arrives at a running proxy, without payloads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from shoal_proxy.asking import AskError, ask_lines

_EXAMPLE = """\
example:
  shoal record --from http://127.0.0.1:9090 --seconds 60 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30

The recording is CSV: arrived_s,rows,shape,deadline_ms. Ctrl-C ends it early; what was written is whole.
"""
_MOST_S = 3600


def main(arguments: Sequence[str]) -> int:
    """Copy the recording to standard output as it comes; return the exit status."""
    parser = argparse.ArgumentParser(
        "shoal record", description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", required=True, metavar="URL", help="admin port of a running proxy")
    parser.add_argument("--seconds", type=_seconds, default=30.0, help=f"up to {_MOST_S}; default 30")
    options = parser.parse_args(arguments)
    arrivals = -1
    try:
        # A proxy at which nothing arrives is silent for as long as the recording takes.
        path = f"/v1/trace?seconds={options.seconds:g}"
        for line in ask_lines(options.source, path, silent_s=options.seconds + 10):
            sys.stdout.write(line)
            sys.stdout.flush()
            arrivals += 1
    except AskError as error:
        print(f"shoal: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{max(0, arrivals)} arrivals in {options.seconds:g} s", file=sys.stderr)  # noqa: T201
    return 0


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MOST_S:
        raise ValueError
    return value


_seconds.__name__ = f"number of seconds up to {_MOST_S}"
