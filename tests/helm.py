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

from helm_python import Config, HelmError, parse_set_string, values_from_yaml

from shoal_schema.fields.declaring import Json


def command() -> list[str]:
    """Return how to run Helm here."""
    found = shutil.which("helm")
    return [found] if found else [sys.executable, "-m", "tests.helm"]


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        sys.stdout.write(f"{_COMMANDS[options.command](options)}\n")
    except HelmError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="helm")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        one = commands.add_parser(name)
        one.add_argument("name")
        one.add_argument("-n", "--namespace", default="default")
        one.add_argument("--timeout", type=_seconds, default=300)
        one.add_argument("--wait", action="store_true")
        if name in ("install", "upgrade"):
            one.add_argument("chart")
            one.add_argument("--set", action="append", default=[])
            one.add_argument("-f", "--values", action="append", default=[])
            one.add_argument("--create-namespace" if name == "install" else "--reuse-values", action="store_true")
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


def _waiting(options: argparse.Namespace) -> str:
    return "watcher" if options.wait else "hookOnly"


def _install(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.install(
            options.chart,
            options.name,
            _values(options),
            namespace=options.namespace,
            create_namespace=options.create_namespace,
            timeout=options.timeout,
            wait=_waiting(options),
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
            wait=_waiting(options),
        )
    return _told(done)


def _told(release: Json) -> str:
    lines = {key.upper(): release[key] for key in ("name", "namespace", "status", "revision")}
    return "".join(f"{key}: {value}\n" for key, value in lines.items()) + f"NOTES:\n{release['notes']}"


def _uninstall(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.uninstall(options.name, timeout=options.timeout, wait=_waiting(options))
    return f'{done["info"]}release "{options.name}" uninstalled'


def _test(options: argparse.Namespace) -> str:
    with _config(options) as config:
        done = config.test(options.name, timeout=options.timeout)
    return _told(done["release"])


_COMMANDS = {"install": _install, "upgrade": _upgrade, "uninstall": _uninstall, "test": _test}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
