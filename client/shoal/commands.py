"""What each command does, from parsed options to an exit status."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from shoal import serve as serving
from shoal.client import Client
from shoal.files import load, parse_json
from shoal.printing import answer_json, answer_text, signature_text
from shoal.serving.fields import merge, parse_assignment, to_environment
from shoal.targets import default_name, find_target

ADMIN_PORT = 9090


def predict(options: argparse.Namespace) -> int:
    """Ask about one item and print the answer."""
    item = _item(options)
    with Client(options.url, options.model, timeout_s=options.timeout) as client:
        outputs = [output.name for output in client.signature().outputs]
        answer = client.predict(item)
    print(answer_json(answer) if options.output == "json" else answer_text(answer, outputs))
    return 0


def info(options: argparse.Namespace) -> int:
    """Print the model's signature."""
    with Client(options.url, options.model, timeout_s=options.timeout) as client:
        print(signature_text(client.signature()))
    return 0


def serve(options: argparse.Namespace) -> int:
    """Serve a model until told to stop."""
    service = find_target(options.target)
    fields = service.fields
    for assignment in options.set:
        fields = merge(fields, parse_assignment(assignment))
    settings = {**os.environ, **to_environment(fields), **_log_level(options)}
    plan = serving.Plan(
        name=settings.get("SHOAL_MODEL_NAME") or default_name(fields["model.uri"]),
        settings=settings,
        host=options.host,
        port=serving.find_port(options.host, options.port, option="--port"),
        admin_port=_admin_port(options),
        quiet=options.quiet,
    )
    if not options.quiet:
        _say_what(plan.name, fields["model.uri"], service.ignored)
    return asyncio.run(serving.serve(plan))


def _log_level(options: argparse.Namespace) -> dict[str, str]:
    """Return how much the processes log, as far as the command line says."""
    level = options.log_level or ("error" if options.quiet else None)
    return {} if level is None else {"SHOAL_LOG_LEVEL": level.upper()}


def _admin_port(options: argparse.Namespace) -> int:
    """Return the admin port: the one asked for, else 9090, else any that is free."""
    if options.admin_port is not None:
        return serving.find_port(options.host, options.admin_port, option="--admin-port")
    if serving.is_free(options.host, ADMIN_PORT) and options.port != ADMIN_PORT:
        return ADMIN_PORT
    return serving.find_port(options.host, 0, option="--admin-port")


def _say_what(name: str, uri: str, ignored: tuple[str, ...]) -> None:
    print(f"serving {name} from {uri}")
    if ignored:
        print(f"without effect on one machine: {', '.join(f'spec.{field}' for field in ignored)}")


def _item(options: argparse.Namespace) -> Any:
    if options.text is not None:
        return options.text
    if options.json is not None:
        return parse_json(options.json, "--json")
    return sys.stdin.buffer.read() if options.file == "-" else load(Path(options.file))
