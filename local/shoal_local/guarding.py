"""Handling of Ctrl-C while the modules of a command are imported."""

from collections.abc import Sequence

from shoal_schema.process.exit_status import run_command


def guarded(module: str, arguments: Sequence[str]) -> int:
    """Import a module and return the exit status of its ``run(arguments)``."""

    def run() -> int:
        from importlib import import_module  # noqa: PLC0415 (guarded)

        return int(import_module(module).run(list(arguments)))

    return run_command(run)
