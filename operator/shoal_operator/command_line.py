"""The operator's command line."""

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import structs

from shoal_operator.errors import OperatorError
from shoal_operator.settings import Settings
from shoal_schema.process.arguments import FILE, run_arguments
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.logs import configure, log_exit_reason, requested_format
from shoal_schema.version import VERSION


class _MissingPackage(Exception):
    """A package of the extra ``operator`` is not installed."""


def run(arguments: Sequence[str]) -> int:
    """Run the operator until SIGTERM or SIGINT; return the exit status."""
    return run_arguments(_operate, "shoal-operator", arguments)


@click.command()
@click.option("--kubeconfig", type=FILE, help="kubeconfig for running outside a cluster")
@click.option("--verbose", is_flag=True, help="log every write")
@click.version_option(VERSION, message="shoal-operator %(version)s")
def _operate(kubeconfig: Path | None, *, verbose: bool) -> int:
    """Reconcile InferenceServices, InferenceGraphs and BatchInferences.

    Settings are environment variables, SHOAL_OPERATOR_*.
    """
    if kubeconfig:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    # Errors in the settings are already logged in the requested format.
    configure(form=requested_format(os.environ))
    try:
        settings = Settings.from_env(os.environ)
        if not settings.process.identity:
            # One identity per process: a restarted container must not take over its predecessor's Lease.
            identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
            settings = structs.replace(settings, process=structs.replace(settings.process, identity=identity))
        configure(settings.logging.level, settings.logging.form)
        if verbose:
            logging.getLogger("shoal_operator").setLevel(logging.DEBUG)
        asyncio.run(_run(settings))
    except _MissingPackage as error:
        log_exit_reason("shoal-operator", f'{error}: pip install "shoal[operator]"')
        return 2
    except (OperatorError, SettingsError) as error:
        log_exit_reason("shoal-operator", error)
        return 2
    return 0


async def _run(settings: Settings) -> None:
    # Imported late, so that --help and a wrong setting do not wait for kopf and aiohttp.
    try:
        from shoal_operator.operation import Operation  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise _MissingPackage(error.msg) from error

    await Operation(settings).run()
