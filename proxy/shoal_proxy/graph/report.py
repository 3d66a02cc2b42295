"""Command ``shoal-proxy composer FILE``, used by ``shoal inspect``.

``shoal inspect`` runs it, since no server describes a composer.
"""

import argparse
import asyncio
import os
from pathlib import Path

import msgspec

from shoal_proxy.graph.composer import Composer
from shoal_proxy.settings import Settings
from shoal_schema.graphs.composer import ComposerReport, as_declared
from shoal_schema.graphs.errors import GraphError
from shoal_schema.process.arguments import CommandParser
from shoal_schema.resource.graph import ComposerSpec


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``shoal-proxy composer``."""
    made = CommandParser("shoal-proxy composer", description="Write the inputs and outputs of a graph's composer.")
    made.add_argument("file", type=Path, help="output file (JSON)")
    return made


def run(options: argparse.Namespace) -> int:
    """Write the inputs and outputs of the graph in the environment to a file; return the exit status."""
    process = Settings.from_env(os.environ).process
    assert process.graph is not None
    assert process.graph.composer is not None
    report = asyncio.run(_report(process.graph.composer, process.composer_dir))
    options.file.write_bytes(msgspec.json.encode(report))
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
