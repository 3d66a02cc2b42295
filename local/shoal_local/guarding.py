"""Starts a program of this package so that Ctrl-C is handled while its modules are still imported."""

from collections.abc import Sequence

from shoal_schema.exit_status import run_command


def guarded(module: str, arguments: Sequence[str]) -> int:
    """Import a module and call its ``run`` with the arguments; return the exit status."""

    def run() -> int:
        from importlib import import_module  # noqa: PLC0415 (guarded)

        return int(import_module(module).run(list(arguments)))

    return run_command(run)
