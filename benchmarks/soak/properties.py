"""The tests' own properties, run again and again with other seeds: fuzzed bodies, hostile specs, whole queues."""

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/proxy", "tests/runtime", "tests/operator", "tests/client", "tests/contract")
PASSING = re.compile(r"(\d+) passing examples")


@dataclass(frozen=True, slots=True)
class Round:
    """All properties once: how many there are, how many examples they passed, and which ones failed."""

    seed: int
    properties: int
    examples: int
    seconds: float
    failed: Sequence[str]


def run_round(seed: int, folders: Sequence[str] = FOLDERS) -> Round:
    """Run every Hypothesis test with ``seed``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "--numprocesses=2", f"--junitxml={report}"]
        command += [f"--hypothesis-seed={seed}", "--hypothesis-show-statistics", "--timeout=600", *folders]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            return Round(seed, 0, 0, 0.0, [result.stdout[-2000:] + result.stderr[-2000:]])
        return read_round(seed, report.read_text(), result.stdout)


def read_round(seed: int, report: str, output: str) -> Round:
    """Return what pytest's JUnit ``report`` and Hypothesis' statistics in its ``output`` say of a round."""
    suite = next(ET.fromstring(report).iter("testsuite"))
    cases = list(suite.iter("testcase"))
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    examples = sum(int(count) for count in PASSING.findall(output))
    return Round(seed, len(cases), examples, float(suite.get("time", "0")), failed)
