"""What states the origin of the artifacts: bills of materials, notes, checksums, provenance and signatures."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.workspace import ROOT, Skipped, Workspace, program, run

CHECKSUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"
BUILD_TYPE = "https://serving.shoal.dev/release/v1"


def list_packages(work: Workspace) -> None:
    """Write a CycloneDX list of the packages in each environment that was installed."""
    for name in ("serve", "local"):
        if not (python := work.scratch / name / "bin" / "python").exists():
            raise Skipped(f"the environment {name} was not installed")
        options = ["--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
        file = work.out / f"shoal-{work.version}-{name}.cdx.json"
        run([program("cyclonedx-py"), "environment", *options, "--output-file", str(file), str(python)])


def write_notes(work: Workspace) -> None:
    """Write the changelog's section of this version."""
    (work.out / "notes.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), work.version))


def notes(changelog: str, version: str) -> str:
    """Return a version's section of the changelog, without its heading.

    Raises:
        ValueError: there is no section, or it is empty.
    """
    match = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if match is None or not match[1].strip():
        raise ValueError(f"CHANGELOG.md has no section `## {version}`")
    return f"{match[1].strip()}\n"


def write_checksums(work: Workspace) -> None:
    """Write SHA256SUMS, which ``sha256sum --check`` reads."""
    others = [path for path in work.artifacts() if path.name not in (CHECKSUMS, PROVENANCE)]
    lines = [f"{digest(path)}  {path.name}\n" for path in others if path.suffix != ".sigstore"]
    (work.out / CHECKSUMS).write_text("".join(lines))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_provenance(work: Workspace) -> None:
    """Write where the artifacts come from, as an in-toto statement with SLSA's predicate."""
    lines = [line.split("  ") for line in (work.out / CHECKSUMS).read_text().splitlines()]
    sums = {name: found for found, name in lines}
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    statement = provenance(sums, work.version, revision, os.environ)
    (work.out / PROVENANCE).write_text(json.dumps(statement, indent=2) + "\n")


def provenance(sums: Mapping[str, str], version: str, revision: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the statement: artifacts by digest, source and builder."""
    server, repository = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY", "")
    workflow, run_id = environ.get("GITHUB_WORKFLOW_REF", ""), environ.get("GITHUB_RUN_ID", "")
    source = f"git+{server}/{repository}" if repository else "git+file:."
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": found}} for name, found in sorted(sums.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version, "command": "make release-check"},
                "resolvedDependencies": [{"uri": source, "digest": {"gitCommit": revision}}],
            },
            "runDetails": {
                "builder": {"id": f"{server}/{workflow}" if workflow else "local"},
                "metadata": {"invocationId": f"{server}/{repository}/actions/runs/{run_id}" if run_id else "local"},
            },
        },
    }


def sign(work: Workspace) -> None:
    """Sign each artifact with Sigstore, without a key of the project.

    Raises:
        Skipped: this machine has no identity to sign with.
    """
    if not {"ACTIONS_ID_TOKEN_REQUEST_URL", "SIGSTORE_IDENTITY_TOKEN"} & set(os.environ):
        raise Skipped(
            "no identity: CI signs with its workflow's token. To sign here, set SIGSTORE_IDENTITY_TOKEN to the"
            " output of `sigstore get-identity-token`"
        )
    files = [str(path) for path in work.artifacts() if path.suffix != ".json" or path.name == PROVENANCE]
    run([program("sigstore"), "sign", *files])
