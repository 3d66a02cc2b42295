"""Command ``shoal-proxy composer FILE``: describe a graph's composer.

A composer is the user's Python code in a graph. ``shoal inspect`` runs this command, as no server describes a composer.
"""

import asyncio
import os
from pathlib import Path

import click
import msgspec

from shoal_proxy.graph.composer import Composer
from shoal_proxy.settings import Settings
from shoal_schema.graphs.composer import ComposerReport, as_declared
from shoal_schema.graphs.errors import GraphError
from shoal_schema.process.arguments import FILE
from shoal_schema.resource.graph import ComposerSpec


@click.command("composer")
@click.argument("file", type=FILE, help="output file (JSON)")
def command(file: Path) -> int:
    """Write the inputs and outputs of the composer of the graph in the environment."""
    process = Settings.from_env(os.environ).process
    assert process.graph is not None
    assert process.graph.composer is not None
    report = asyncio.run(_report(process.graph.composer, process.composer_dir))
    file.write_bytes(msgspec.json.encode(report))
    return 0


async def _report(spec: ComposerSpec, folder: str) -> ComposerReport:
    composer = Composer(spec, folder)
    try:
        signature = await composer.load_signature()
    except GraphError as error:
        return ComposerReport(path=error.path, refused=error.what)
    finally:
        composer.close()
    return ComposerReport(as_declared(signature.inputs), as_declared(signature.outputs))
