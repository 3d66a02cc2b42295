"""The Helm chart as an OCI artifact."""

import helm_python

from release.workspace import ROOT, Workspace, say

CHART = ROOT / "charts" / "shoal"
LINT_ERROR = 3


def package(work: Workspace) -> None:
    """Lint the chart and package it.

    Raises:
        RuntimeError: Helm finds an error.
    """
    found = helm_python.lint(CHART, {"images": {"registry": "registry.example.com/shoal"}})
    if errors := [each for each in found["messages"] if each["severity"] >= LINT_ERROR]:
        raise RuntimeError(f"the chart has errors: {errors}")
    helm_python.package(CHART, destination=work.out)


def push(work: Workspace, registry: str) -> None:
    """Push the packaged chart to a registry of this machine."""
    [archive] = work.artifacts(f"shoal-{work.version}.tgz")
    helm_python.push(archive, f"oci://{registry}/charts", plain_http=True)
    say(f"pushed oci://{registry}/charts/shoal:{work.version}")
