"""Build a release, publish it to servers of this machine, and install it: ``make release-check``.

A step that this machine cannot run is skipped and prints the reason; a step that fails ends the command with status 1,
after the steps that do not need it. Unknown options are options of ``images.py build``.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from helm_python import HelmError

from release import attestations, chart, containers, distributions, installation, servers
from release.workspace import ROOT, Skipped, Workspace, say, version

FAILURES = (HelmError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)


@dataclass
class Table:
    """What each step made and how long it took."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    failed: bool = False

    def step(self, work: Workspace, name: str, action: Callable[[], None]) -> bool:
        """Run a step, and add a row for each artifact; return whether it succeeded."""
        say(f"\n== {name}")
        before, images = set(work.artifacts()), set(work.images)
        started_s, note = time.monotonic(), ""
        try:
            action()
        except Skipped as reason:
            note = f"skipped: {reason}"
        except FAILURES as error:
            self.failed, note = True, f"FAILED: {error}"
        if note:
            say(f"{name}: {note}")
        took = f"{time.monotonic() - started_s:.1f}"
        made = [(path.name, path.stat().st_size) for path in work.artifacts() if path not in before]
        made += [(image, size) for image, size in work.images.items() if image not in images]
        sized = [(artifact, f"{size / 1e6:.2f}") for artifact, size in made]
        # A reason has its own row, also where a part was made.
        sized += [(note or "done", "")] if note or not sized else []
        self.rows += [(name, artifact, size, took if not index else "") for index, (artifact, size) in enumerate(sized)]
        return not note

    def text(self) -> str:
        """Return the table: step, artifact, megabytes, seconds."""
        rows = [("step", "artifact", "MB", "seconds"), *self.rows]
        first, second = (max(len(row[column]) for row in rows if len(row[column]) <= 70) for column in (0, 1))
        return "\n".join(f"{row[0]:{first}}  {row[1]:{second}}  {row[2]:>9}  {row[3]:>8}".rstrip() for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps and print the table; return the exit status."""
    parser = argparse.ArgumentParser("release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release", help="directory of the artifacts")
    parser.add_argument("--attest", action="store_true", help="only checksums, provenance and signatures of --out")
    options, image_options = parser.parse_known_args(arguments)
    table = Table()
    with tempfile.TemporaryDirectory() as scratch:
        work = Workspace(options.out, Path(scratch), version(), tuple(image_options))
        if not options.attest:
            shutil.rmtree(options.out, ignore_errors=True)
            options.out.mkdir(parents=True)
            release(work, table)
        attest(work, table)
    say(f"\n{table.text()}")
    return int(table.failed)


def release(work: Workspace, table: Table) -> None:
    """Build, publish to this machine, and install."""
    step = partial(table.step, work)
    step("distributions", partial(distributions.build_pure, work))
    step("compiled wheels", partial(distributions.build_compiled, work))
    step("compiled wheels, aarch64", partial(distributions.build_other_architecture, work))
    step("chart", partial(chart.package, work))
    with ExitStack() as stack:
        registries: list[str] = []
        if step("registry", lambda: registries.append(stack.enter_context(servers.registry(work)))):
            [registry] = registries
            step("images", partial(containers.build_images, work, registry))
            step("images, arm64", partial(containers.build_arm, work, registry))
            step("push of the chart", partial(chart.push, work, registry))
        index = stack.enter_context(servers.package_index(work))
        step("upload", partial(distributions.upload, work, index))
        step("first prediction", partial(installation.predict, work, index))
        if registries:
            step("install of the chart", partial(installation.install_chart, work, index, registries[0]))
        step("bills of materials", partial(attestations.list_packages, work))


def attest(work: Workspace, table: Table) -> None:
    """State the origin of the artifacts."""
    step = partial(table.step, work)
    step("notes", partial(attestations.write_notes, work))
    step("checksums", partial(attestations.write_checksums, work))
    step("provenance", partial(attestations.write_provenance, work))
    step("signatures", partial(attestations.sign, work))


if __name__ == "__main__":
    sys.exit(main())
