"""Command line of the proxy.

Without a command it serves. Its commands are ``simulate``, ``record`` and ``composer``.
"""

import os
from collections.abc import Sequence

from shoal_schema.version import VERSION

_GRPC_PACKAGES = ("grpc", "google")


def run(arguments: Sequence[str]) -> int:
    """Run the proxy, or the command in ``arguments``; return the exit status."""
    try:
        return _command(arguments) if arguments else _serve()
    except ModuleNotFoundError as missing:
        # The package is part of an extra that is not installed.
        extra = "grpc" if (missing.name or "").partition(".")[0] in _GRPC_PACKAGES else "proxy"
        from shoal_schema.process.logs import log_exit_reason  # noqa: PLC0415

        log_exit_reason("shoal-proxy", f'{missing}: pip install "shoal[{extra}]"')
        return 1


def _command(arguments: Sequence[str]) -> int:
    import click  # noqa: PLC0415 (to serve needs none of these)

    from shoal_proxy.commands import record_command, simulate  # noqa: PLC0415
    from shoal_proxy.graph import report  # noqa: PLC0415
    from shoal_schema.process.arguments import run_arguments  # noqa: PLC0415

    commands = click.Group("shoal-proxy", commands=[simulate.command, record_command.command, report.command])
    versioned = click.version_option(VERSION, message="shoal-proxy %(version)s")(commands)
    return run_arguments(versioned, "shoal-proxy", arguments)


def _serve() -> int:
    """Run the proxy until stopped; return the exit status."""
    import asyncio  # noqa: PLC0415 (the commands above need none of these)

    from shoal_schema.process.logs import configure, log_exit_reason, requested_format  # noqa: PLC0415

    # Before the other imports, so that their errors are logged in the requested format.
    configure(form=requested_format(os.environ))
    import uvloop  # noqa: PLC0415

    from shoal_proxy.server import serve  # noqa: PLC0415
    from shoal_proxy.settings import Settings  # noqa: PLC0415
    from shoal_schema.process.environment import SettingsError  # noqa: PLC0415
    from shoal_schema.process.memory import KEEP_BODIES, keep_freed_memory  # noqa: PLC0415

    try:
        settings = Settings.from_env(os.environ)
        configure(settings.logging.level, settings.logging.form)
        keep_freed_memory(KEEP_BODIES)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SettingsError as error:
        log_exit_reason("shoal-proxy", error)
        return 2
    except OSError as error:
        log_exit_reason("shoal-proxy", error.strerror or error)
        return 1
    return 0
