"""Begins a program of this package: Ctrl-C counts from the first line on, while all the rest is imported."""

from collections.abc import Sequence

from shoal_schema.ending import ended


def guarded(module: str, arguments: Sequence[str]) -> int:
    """Import a module and have its ``run`` carry out the arguments; return the exit status."""

    def run() -> int:
        from importlib import import_module  # noqa: PLC0415 (guarded)

        return int(import_module(module).run(list(arguments)))

    return ended(run)
