"""``shoal batch``: what somebody asked for, as the settings of the runtime's batch program."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.serving.fields import FieldError
from shoal_schema.resource.locations import scheme_of
from shoal_schema.resource.offline import ERRORS_IN_COLUMN


def batch_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of a job; what was not asked for is left out.

    Raises:
        FieldError: a column is not said as INPUT=COLUMN.
    """
    errors = options.errors if options.errors in (None, ERRORS_IN_COLUMN) else _absolute(options.errors)
    asked = {
        "INPUT": _absolute(options.input),
        "INPUT_FORMAT": options.format,
        "COLUMNS": json.dumps(_columns(options.columns)) if options.columns else None,
        "WHERE": options.where,
        "OUTPUT": _absolute(options.output),
        "OUTPUT_FORMAT": options.output_format,
        "KEEP": options.keep,
        "ERRORS": errors,
        "SIZE": options.batch_size,
        "MAX_ERROR_SHARE": options.max_error_share,
        "SHARD_BYTES": options.shard_bytes,
        "ENGINES": options.workers,
        "ENGINE": _service(options) if options.to else None,
    }
    return {
        "SHOAL_LOG_LEVEL": options.log_level.upper(),
        **{f"SHOAL_BATCH_{name}": str(value) for name, value in asked.items() if value is not None},
    }


def _service(options: argparse.Namespace) -> str:
    """Return the program that asks a service."""
    files = {name: getattr(options, name) for name in ("api_key_file", "ca_file", "cert", "key")}
    given = {"model": options.model, **{name: file and str(Path(file).absolute()) for name, file in files.items()}}
    named = [part for name, value in given.items() if value for part in (f"--{name.replace('_', '-')}", value)]
    return shlex.join([sys.executable, "-P", "-m", "shoal.backfill", options.to, *named])


def _columns(assignments: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in assignments:
        name, equals, columns = each.partition("=")
        if not (name and equals and columns):
            raise FieldError(f"--columns takes INPUT=COLUMN, or INPUT=COLUMN,COLUMN,..., not {each!r:.80}")
        found[name] = columns
    return found


def _absolute(url: str) -> str:
    """Return a path as it is called from anywhere: a plan that is gone on with from another folder is the same."""
    return url if scheme_of(url) else str(Path(url).absolute())
