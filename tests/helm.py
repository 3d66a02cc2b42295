"""``helm``, as far as tests and pages use it, over the Helm SDK: ``python -m tests.helm install NAME CHART ...``.

For machines that have no ``helm``; where there is one, that one is run.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from helm_python import Config, HelmError, lint, parse_set_string, values_from_yaml

Json = dict[str, Any]


def command() -> list[str]:
    """Return how to run Helm here."""
    found = shutil.which("helm")
    return [found] if found else [sys.executable, "-m", "tests.helm"]


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        print(_COMMANDS[options.command](options))
    except HelmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="helm")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        one = commands.add_parser(name)
        if name != "lint":
            one.add_argument("name")
        if name in ("install", "upgrade", "lint"):
            one.add_argument("chart")
            one.add_argument("--set", action="append", default=[])
            one.add_argument("-f", "--values", action="append", default=[])
        one.add_argument("-n", "--namespace", default="default")
        one.add_argument("--timeout", type=_seconds, default=300)
        for flag in ("--wait", "--create-namespace", "--install", "--logs", "--reuse-values"):
            one.add_argument(flag, action="store_true")
    return parser


def _seconds(text: str) -> int:
    return int(text.removesuffix("s")) if text.endswith("s") else 60 * int(text.removesuffix("m"))


def _values(options: argparse.Namespace) -> Json:
    given = [values_from_yaml(Path(path).read_text()) for path in options.values]
    return reduce(_merged, (*given, *(parse_set_string(text) for text in options.set)), {})


def _merged(below: Json, above: Json) -> Json:
    both = {key: _merged(below[key], value) for key, value in above.items() if _are_maps(below.get(key), value)}
    return {**below, **above, **both}


def _are_maps(*values: object) -> bool:
    return all(isinstance(value, dict) for value in values)


def _config(options: argparse.Namespace) -> Config:
    return Config(kubeconfig_path=os.environ.get("KUBECONFIG"), namespace=options.namespace)


def _install(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.install(
            options.chart,
            options.name,
            _values(options),
            namespace=options.namespace,
            create_namespace=options.create_namespace,
            timeout=options.timeout,
            wait="watcher" if options.wait else "hookOnly",
        )
    return _told(done)


def _upgrade(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.upgrade(
            options.chart,
            options.name,
            _values(options),
            namespace=options.namespace,
            reuse_values=options.reuse_values,
            timeout=options.timeout,
            wait="watcher" if options.wait else "hookOnly",
        )
    return _told(done)


def _told(release: Json) -> str:
    return f"NAME: {release['name']}\nSTATUS: {release.get('status')}\nKEYS: {list(release)} NOTES:\n{release.get('notes', '')}"


def _uninstall(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.uninstall(options.name, timeout=options.timeout, wait="watcher" if options.wait else "hookOnly")
    return f'{done.get("info", "")}release "{options.name}" uninstalled'


def _test(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.test(options.name, timeout=options.timeout, logs=options.logs)
    return _told(done["release"]) + str(done.get("logs", ""))


def _lint(options: argparse.Namespace) -> str:
    return str(lint(options.chart, _values(options))["messages"])


_COMMANDS = {"install": _install, "upgrade": _upgrade, "uninstall": _uninstall, "test": _test, "lint": _lint}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
