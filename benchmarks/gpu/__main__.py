"""Measure Shoal on a GPU beside loops without a server: ``make bench-gpu PIECE=resnet``.

Each piece takes at most eight minutes and needs no network. It writes its results file after each case, so that a run
that is cut off keeps what it has measured. ``--report`` joins the newest files of all pieces into one table and one
picture. ``--device cpu --quick`` runs all of it with tiny networks in a few minutes.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.needed import what_is_missing

ROOT = Path(__file__).parents[2]
RESULTS, QUICK_RESULTS = ROOT / "benchmarks/results", ROOT / "build/bench-gpu"
PICTURE = ROOT / "docs/img/gpu.svg"
LIMIT_S = 8 * 60.0
"""Of a piece."""
LONGEST_S = 90.0
"""Of a case, with the start of its server: none begins later than this before the piece's limit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run pieces, list them, or join their results; return 0 if all pieces ran, whether or not marks are met."""
    options = parser().parse_args(arguments)
    if reason := what_is_missing():
        print(f"benchmark: {reason}", file=sys.stderr)
        return 1
    # What `kill` sends ends like Ctrl-C: through the with blocks, which stop servers and loops.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Runtimes import the handler's modules from here.
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    directory = options.results or (QUICK_RESULTS if options.quick else RESULTS)
    if options.list:
        return show_pieces()
    if options.report:
        return report(directory, options.picture or (directory / PICTURE.name if options.quick else PICTURE))
    if not options.piece:
        parser().error("name a piece with --piece, or use --list or --report")
    return max(run(piece, options, directory) for piece in options.piece)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    found.add_argument("--piece", nargs="+", help="pieces to run, one after the other")
    found.add_argument("--list", action="store_true", help="print the pieces")
    found.add_argument("--report", action="store_true", help="join the results of all pieces")
    found.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    found.add_argument("--quick", action="store_true", help="tiny networks, short loads, few clients")
    found.add_argument("--brief", action="store_true", help="a minute per piece: shorter and fewer loads, no objective")
    found.add_argument("--results", type=Path, help="directory of the results files")
    found.add_argument("--picture", type=Path, help="file of the report's picture")
    return found


def show_pieces() -> int:
    """Print the pieces."""
    from benchmarks.gpu.pieces import PIECES  # noqa: PLC0415, packages may be missing until they are checked

    for name, piece in PIECES.items():
        print(f"{name:<10} {piece.what}")
    return 0


def run(name: str, options: argparse.Namespace, directory: Path) -> int:
    """Run one piece, and write its file after each case."""
    # Packages may be missing until they are checked.
    from benchmarks.gpu.pieces import PIECES  # noqa: PLC0415
    from benchmarks.gpu.results import piece_document, report_lines, write_atomically  # noqa: PLC0415
    from benchmarks.gpu.serving import Effort  # noqa: PLC0415
    from benchmarks.report import Row, make_row, slug  # noqa: PLC0415
    from examples.server import ServerError  # noqa: PLC0415

    if name not in PIECES:
        print(f"benchmark: no piece {name}; there are {', '.join(PIECES)}", file=sys.stderr)
        return 2
    effort = Effort(options.device, options.quick, **shorter(options))
    here = surroundings_of(options)
    path = directory / f"gpu-{name}-{slug(here['device'])}-{here['date']}.json"
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    targets, started_s, failed = PIECES[name].targets(effort.most), time.monotonic(), False

    def save() -> dict[str, Any]:
        result = piece_document(name, rows, skipped, targets, here)
        write_atomically(path, result)
        return result

    try:
        for case, measured in PIECES[name].measure(effort):
            if isinstance(measured, str):
                skipped[case] = measured
            else:
                rows.append(make_row(case, [measured]))
            save()
            print(f"[{time.monotonic() - started_s:4.0f} s] {case}: {short(measured)}", flush=True)
            if time.monotonic() - started_s > LIMIT_S - LONGEST_S:
                skipped[name] = f"the piece's {LIMIT_S / 60:g} minutes were over"
                break
    except (ServerError, subprocess.SubprocessError, TimeoutError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        skipped[name], failed = f"failed: {str(error).splitlines()[0][:200]}", True
    print("\n".join(["", *report_lines([save()])]))
    print(f"\nwritten: {path}")
    return int(failed)


def shorter(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that shorten a run, by the command line."""
    if options.quick:
        return {"clients": (1, 8), "warm_up_s": 0.3, "duration_s": 0.5}
    return {"clients": (1, 64, 512), "warm_up_s": 0.5, "duration_s": 1.5, "brief": True} if options.brief else {}


def surroundings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return machine, device, date and versions.

    Raises:
        SystemExit: torch finds no such device.
    """
    import torch  # noqa: PLC0415, it may be missing until it is checked

    from benchmarks.surroundings import package_version, surroundings  # noqa: PLC0415

    here = surroundings()
    here["versions"] |= {name: package_version(name) for name in ("onnx", "onnxruntime", "onnxruntime-gpu")}
    here |= {"quick": options.quick, "brief": options.brief, "device": "cpu"}
    if options.device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit("benchmark: torch finds no CUDA device; --device cpu --quick runs without one")
        here["device"] = torch.cuda.get_device_name(options.device)
        here["versions"] |= {"cuda": torch.version.cuda}
    return here


def short(measured: Any) -> str:
    """Return a case's main figures, or why it is skipped."""
    from benchmarks.gpu.results import COLUMNS  # noqa: PLC0415, packages may be missing until they are checked

    if isinstance(measured, str):
        return f"skipped: {measured}"
    shown = [f"{COLUMNS[each][0]} {COLUMNS[each][1](measured[each])}" for each in COLUMNS if each in measured]
    return ", ".join(shown)


def report(directory: Path, picture: Path) -> int:
    """Print the joint table and the marks, and draw the picture."""
    from benchmarks.gpu.pieces import PIECES  # noqa: PLC0415, packages may be missing until they are checked
    from benchmarks.gpu.results import read_pieces, report_lines, rows_in  # noqa: PLC0415

    results = read_pieces(directory, PIECES)
    if not results:
        print(f"benchmark: no results of a piece in {directory}", file=sys.stderr)
        return 1
    lines = report_lines(results)
    print("\n".join(lines))
    try:
        from benchmarks.gpu.plots import draw  # noqa: PLC0415, a machine with a GPU may have no matplotlib
    except ModuleNotFoundError as error:
        print(f"\nno picture: {error.name} is not installed")
        return 0
    draw([row for result in results for row in rows_in(result)], lines[0], picture)
    print(f"\nwritten: {picture}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("benchmark: stopped")
