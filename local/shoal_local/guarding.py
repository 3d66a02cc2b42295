"""Handling of Ctrl-C while the modules of a command are imported."""

from collections.abc import Sequence

from shoal_schema.process.exit_status import run_command


def guarded(module: str, program: str, arguments: Sequence[str]) -> int:
    """Import a module and run its click ``command``; return the exit status."""

    def run() -> int:
        from importlib import import_module  # noqa: PLC0415 (guarded)

        from shoal_schema.process.arguments import run_arguments  # noqa: PLC0415 (guarded)

        return run_arguments(import_module(module).command, program, arguments)

    return run_command(run)
