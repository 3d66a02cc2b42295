"""Convert the options of ``shoal batch`` to settings of the runtime's batch program."""

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

from shoal.serving.errors import FieldError
from shoal_schema.resource.locations import scheme_of
from shoal_schema.resource.offline import ERRORS_IN_COLUMN


def batch_environment(options: SimpleNamespace) -> dict[str, str]:
    """Return a batch job's settings as environment variables; omitted options have none.

    Raises:
        FieldError: an assignment of --columns is not INPUT=COLUMN.
    """
    columns = {}
    for each in options.columns:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise FieldError(f"--columns takes INPUT=COLUMN, or INPUT=COLUMN,COLUMN,..., not {each!r:.80}")
        columns[name] = value
    engine: str | None = None
    if options.to:
        # The program that sends the rows to a service.
        files = {name: getattr(options, name) for name in ("api_key_file", "ca_file", "cert", "key")}
        given = {"model": options.model, **{name: file and str(Path(file).absolute()) for name, file in files.items()}}
        named = [part for name, value in given.items() if value for part in (f"--{name.replace('_', '-')}", value)]
        engine = shlex.join([sys.executable, "-P", "-m", "shoal.backfill", options.to, *named])
    # "Column" is a keyword, any other value a directory.
    errors = options.errors if options.errors in (None, ERRORS_IN_COLUMN) else _absolute(options.errors)
    settings = {
        "INPUT": _absolute(options.input),
        "INPUT_FORMAT": options.format,
        "COLUMNS": json.dumps(columns) if columns else None,
        "WHERE": options.where,
        "OUTPUT": _absolute(options.output),
        "OUTPUT_FORMAT": options.output_format,
        "KEEP": options.keep,
        "ERRORS": errors,
        "SIZE": options.batch_size,
        "MAX_ERROR_SHARE": options.max_error_share,
        "SHARD_BYTES": options.shard_bytes,
        "ENGINES": options.workers,
        "ENGINE": engine,
    }
    return {
        "SHOAL_LOG_LEVEL": options.log_level.upper(),
        **{f"SHOAL_BATCH_{name}": str(value) for name, value in settings.items() if value is not None},
    }


def _absolute(url: str) -> str:
    """Return a path as an absolute path, and a URL unchanged.

    A job can then be resumed from any directory.
    """
    return url if scheme_of(url) else str(Path(url).absolute())
