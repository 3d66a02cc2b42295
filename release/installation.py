"""Install what was published locally into clean environments, and request a first prediction."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helm_python import Config

from release.workspace import Workspace, run, say

TIMEOUT_S = 120
MODEL = """\
from shoal_runtime import TensorSpec


class Mean:
    inputs = [TensorSpec("x", "FP32", [-1, -1])]
    outputs = [TensorSpec("mean", "FP32", [-1, 1])]

    def forward(self, batch):
        return batch["x"].mean(dim=1, keepdim=True)
"""


def environment(work: Workspace, name: str, requirement: str, index: str) -> Path:
    """Install a requirement into a new environment; return its directory of programs.

    Raises:
        RuntimeError: a distribution of Shoal did not come from the local index.
    """
    directory = work.directory(name)
    run([sys.executable, "-m", "venv", str(directory)])
    report = directory / "report.json"
    pip = [str(directory / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
    # The index first, so that nothing of another index is taken for Shoal.
    local = ["--extra-index-url", f"http://{index}/simple/", "--report", str(report)]
    run([*pip, *local, f"{requirement}=={work.version}"], cwd=work.scratch)
    for each in json.loads(report.read_text())["install"]:
        url, what = each["download_info"]["url"], each["metadata"]["name"]
        if what in ("shoal", "shoal-local") and index not in url:
            raise RuntimeError(f"{what} came from {url}, not from the local index")
    return directory / "bin"


def predict(work: Workspace, index: str) -> None:
    """Install ``shoal[serve]``, serve a model of one file, and request a prediction."""
    programs = environment(work, "serve", "shoal[serve]", index)
    model = work.directory("mean")
    (model / "handler.py").write_text(MODEL)
    with serving(programs, model) as url:
        output = run([str(programs / "shoal"), "predict", url, "--data", "[1, 2, 3]", "--json"], cwd=work.scratch)
    if json.loads(output) != [2.0]:
        raise RuntimeError(f"the mean of 1, 2 and 3 is not {output}")
    say(f"the first prediction: {output.strip()}")


@contextmanager
def serving(programs: Path, model: Path) -> Iterator[str]:
    """Run ``shoal serve``, compiled; yield the address of the server."""
    command = [str(programs / "shoal"), "serve", str(model), "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        command, cwd=model.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            seen = ""
            for line in server.stdout:
                seen += line
                if found := re.search(r"listening on (http://\S+),", line):
                    if "compiled=no" in seen:
                        raise RuntimeError(f"the installed proxy or runtime is not compiled:\n{seen}")
                    yield found[1]
                    return
            raise RuntimeError(f"shoal serve ended:\n{seen}")
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=TIMEOUT_S)


def install_chart(work: Workspace, index: str, registry: str) -> None:
    """Install ``shoal-local``, start its cluster, and install and test the chart from the registry."""
    programs = environment(work, "local", "shoal-local", index)
    shoal, directory = str(programs / "shoal"), str(work.scratch / "cluster")
    try:
        run([shoal, "local", "up", "--no-operator", "--dir", directory], cwd=work.scratch)
        # This process has no `shoal_local`, whose values these are in part.
        values = {
            "images": {"registry": f"{registry}/shoal"},
            # The cluster's pods share one network and have no DNS.
            "podListenHost": "$(POD_IP)",
            "peers": False,
            "serviceUrl": "http://$(CLUSTER_IP)",
            # It needs the address of the operator's Service.
            "activator": {"enabled": False},
        }
        namespace = "shoal-system"
        with Config(kubeconfig_path=f"{directory}/kubeconfig", namespace=namespace) as helm:
            helm.install(
                f"oci://{registry}/charts/shoal",
                "shoal",
                values,
                namespace=namespace,
                create_namespace=True,
                chart_version=work.version,
                plain_http=True,
                timeout=TIMEOUT_S,
                wait="watcher",
            )
            done = helm.test("shoal", timeout=TIMEOUT_S)
        say(f"helm test: {done['release']['status']}")
    finally:
        run([shoal, "local", "down", "--dir", directory], cwd=work.scratch)
