"""What each command does, from parsed options to an exit status."""

import argparse
import asyncio
import os
import sys
from contextlib import closing

from shoal import completion as completing
from shoal import serve as serving
from shoal.bench import bench as load_until_it_bends
from shoal.client import Client
from shoal.colours import Style, styled
from shoal.files import given_item
from shoal.printing import answer_text, json_text, signature_json, signature_text
from shoal.serving.fields import FieldError, merge, parse_assignment, to_environment, without_effect
from shoal.targets import check_is_here, default_name, files_beside, find_target
from shoal_schema.resource.locations import shown

ADMIN_PORT = 9090


def predict(options: argparse.Namespace) -> int:
    """Ask about one item and print the answer."""
    item = given_item(options, options.file)
    with Client(options.url, options.model, timeout_s=options.timeout) as client:
        outputs = [output.name for output in client.signature().outputs]
        answer = client.predict(item)
    print(json_text(answer) if options.json else _with_headline(answer_text(answer, outputs)))
    return 0


def info(options: argparse.Namespace) -> int:
    """Print the model's signature."""
    with Client(options.url, options.model, timeout_s=options.timeout) as client:
        signature = client.signature()
    print(signature_json(signature) if options.json else _with_headline(signature_text(signature)))
    return 0


def bench(options: argparse.Namespace) -> int:
    """Load a server until it bends, and say what to change."""
    return load_until_it_bends(options)


def completion(options: argparse.Namespace) -> int:
    """Print the script with which a shell completes the command."""
    print(completing.script(options.shell))
    return 0


def _with_headline(text: str) -> str:
    """Return a table or a summary with its first line in bold; a lone line needs none."""
    first, newline, rest = text.partition("\n")
    return f"{styled(first, Style.BOLD, stream=sys.stdout)}{newline}{rest}" if rest else text


def serve(options: argparse.Namespace) -> int:
    """Serve a model until told to stop."""
    if options.port and options.port == options.admin_port:
        raise FieldError(f"--port and --admin-port must differ, not both be {options.port}")
    service = find_target(options.target)
    fields, idle = service.fields, []
    for assignment in options.set:
        if name := without_effect(assignment):
            idle.append(name)
        else:
            fields = merge(fields, parse_assignment(assignment))
    ignored = service.without_effect(idle)
    check_is_here(fields["model.uri"])
    log_level = options.log_level or ("error" if options.quiet else None)
    level = {"SHOAL_LOG_LEVEL": log_level.upper()} if log_level else {}
    settings = {**os.environ, **to_environment(fields), **level}
    output, log = serving.outlets(json=options.json)
    with serving.claimed(ADMIN_PORT) as ours:
        launch = serving.Launch(
            name=settings.get("SHOAL_MODEL_NAME") or default_name(fields["model.uri"]),
            settings=settings,
            host=options.host,
            port=serving.find_port(options.host, options.port, option="--port"),
            admin_port=_admin_port(options, usual_is_ours=ours),
            quiet=options.quiet,
            json=options.json,
            files=files_beside(options.target),
            output=output,
            log=log,
        )
        with closing(launch):
            uri = shown(fields["model.uri"])
            launch.say(f"serving {launch.name} from {uri}", name=launch.name, uri=uri)
            if ignored:
                launch.say(f"without effect on one machine: {', '.join(ignored)}", ignored=ignored)
            if options.admin_port is None and launch.admin_port != ADMIN_PORT:
                launch.say(
                    f"{ADMIN_PORT} is in use, so metrics are on {launch.admin_url}/metrics", admin_url=launch.admin_url
                )
            return asyncio.run(serving.serve(launch))


def _admin_port(options: argparse.Namespace, *, usual_is_ours: bool) -> int:
    """Return the admin port: the one asked for, else 9090 if it is free and nobody else's, else any that is free."""
    if options.admin_port is not None:
        return serving.find_port(options.host, options.admin_port, option="--admin-port")
    if usual_is_ours and options.port != ADMIN_PORT and serving.is_free(options.host, ADMIN_PORT):
        return ADMIN_PORT
    return serving.find_port(options.host, 0, option="--admin-port")
