"""The import contracts of ``pyproject.toml`` detect the imports that they forbid."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPONENTS = ("client", "local", "operator", "proxy", "runtime", "schema")
FORBIDDEN = {
    "client/shoal/errors.py": "shoal_operator.errors",
    "operator/shoal_operator/errors.py": "shoal_operator.scaling.scraper",
    "operator/shoal_operator/scaling/autoscaler.py": "numpy",
    "proxy/shoal_proxy/batching/queue.py": "time",
    "proxy/shoal_proxy/graph/values.py": "shoal_proxy.graph.walk",
    "proxy/shoal_proxy/server.py": "torch",
    "runtime/shoal_runtime/loading.py": "kopf",
    "runtime/shoal_runtime/tensors/library.py": "pathlib",
    "schema/shoal_schema/interfaces/bounds.py": "shoal_schema.generate",
    "schema/shoal_schema/interfaces/headers.py": "httpx",
    "schema/shoal_schema/interfaces/load.py": "shoal_proxy.errors",
}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*COMPONENTS, "."])},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_each_forbidden_import_and_each_unplaced_module_breaks_a_contract(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for component in COMPONENTS:
        shutil.copytree(ROOT / component, tmp_path / component, ignore=ignored)
    (tmp_path / "tests/project").mkdir(parents=True)
    shutil.copy(ROOT / "tests/project/contracts.py", tmp_path / "tests/project")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, module in FORBIDDEN.items():
        path = tmp_path / name
        path.write_text(f"{path.read_text()}\nimport {module}\n")
    (tmp_path / "runtime/shoal_runtime/unplaced.py").touch()

    ended = lint(tmp_path)

    assert ended.returncode == 1, ended.stderr
    found = " ".join(ended.stdout.split())
    missed = [
        (importer, module)
        for name, module in FORBIDDEN.items()
        if f"{(importer := name.partition('/')[2].removesuffix('.py').replace('/', '.'))} -> {module} (" not in found
    ]
    assert missed == []
    assert "- shoal_runtime.unplaced" in found
    assert "3 broken" in found
