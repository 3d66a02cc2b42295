import json
import zipfile
from importlib.machinery import PathFinder
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import pytest

from benchmarks.peers.environments import requirements, version_of
from benchmarks.peers.launching import LAUNCHES, OURS, Launch, launch
from benchmarks.peers.tuning import candidates, chosen
from benchmarks.peers.workload import COLUMNS, SLOW, WAIT, WORKLOADS, Job, Workload, load
from shoal.serving.fields import parse_assignment

PEERS = [peer for peer in LAUNCHES if peer != "shoal"]
EVERY = [(peer, workload) for peer in LAUNCHES for workload in WORKLOADS]


def launched(peer: str, workload: str) -> Launch:
    return launch(peer, Job(WORKLOADS[workload], 4000, dict(chosen(peer, workload))), (4001, 4002))


@pytest.mark.parametrize(("peer", "workload"), EVERY)
def test_each_server_is_told_model_port_and_settings(peer: str, workload: str) -> None:
    made = launched(peer, workload)

    assert made.environment["PEER_MODEL"] == workload
    assert made.environment["PEER_PORT"] == "4000"
    assert json.loads(made.environment["PEER_SETTINGS"]) == chosen(peer, workload)
    assert made.path.startswith("/")
    assert len({repr(json.loads(body)) for body in made.bodies}) == len(made.bodies) > 1


@pytest.mark.parametrize("workload", WORKLOADS)
def test_fields_of_shoal_are_fields_that_it_knows(workload: str) -> None:
    command = launched("shoal", workload).command
    fields = [option.removeprefix("--set=") for option in command if option.startswith("--set=")]

    assert fields
    for field in fields:
        parse_assignment(field)


@pytest.mark.parametrize("package", OURS)
def test_shoal_is_measured_from_where_the_benchmark_imports_it_compiled_or_not(package: str) -> None:
    path = launched("shoal", "mlp").environment["PYTHONPATH"].split(":")

    served, imported = PathFinder.find_spec(package, path), find_spec(package)

    assert served is not None
    assert imported is not None
    assert served.origin == imported.origin


def test_servers_configured_by_files_listen_on_this_machine_alone() -> None:
    properties = launched("torchserve", "wait").files["config.properties"].decode()
    addresses = [line.partition("=")[2] for line in properties.splitlines() if "_address=" in line]
    settings = json.loads(launched("mlserver", "wait").files["settings.json"])

    assert addresses == [f"http://127.0.0.1:{port}" for port in (4000, 4001, 4002)]
    assert settings["host"] == "127.0.0.1"
    assert '"batchSize": 64' in properties


def test_the_archive_of_torchserve_names_the_handler_that_it_holds() -> None:
    with zipfile.ZipFile(BytesIO(launched("torchserve", "wait").files["model.mar"])) as archive:
        handler = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]["handler"]
        assert b"def handle(" in archive.read(handler)


@pytest.mark.parametrize("peer", PEERS)
def test_each_server_is_pinned_with_all_it_needs(peer: str) -> None:
    lines = [line for line in requirements(peer).read_text().splitlines() if not line.startswith("#")]

    assert all("==" in line for line in lines)
    assert "torch==2.13.0" in lines
    assert version_of(peer)[0].isdigit()


@pytest.mark.parametrize("peer", PEERS)
def test_each_server_has_a_few_settings_to_choose_from(peer: str) -> None:
    for workload in WORKLOADS:
        assert 3 <= len(candidates(peer, workload)) <= 4
        assert chosen(peer, workload) in candidates(peer, workload)


def test_ceilings_are_those_of_full_batches() -> None:
    assert WAIT.ceiling_per_s() == pytest.approx(6153.8, abs=0.1)
    assert SLOW.ceiling_per_s() == pytest.approx(888.9, abs=0.1)


def test_a_waiting_model_adds_one() -> None:
    predict = load(Workload("quick", 64, base_ms=0.1))

    assert (predict(np.zeros((3, COLUMNS), np.float32)) == 1).all()


def test_the_perceptron_is_the_one_that_shoal_serves() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.bare import ROOT, load_class
    from shoal_runtime import Context

    folder = ROOT / "examples/mlp/model"
    theirs = load_class(folder, "Mlp")()
    theirs.load(Context(folder, torch.device("cpu"), None, 64))
    x = np.linspace(-1, 1, 2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)

    with torch.inference_mode():
        expected = theirs.forward({"x": torch.from_numpy(x)}).numpy()
    assert load(WORKLOADS["mlp"])(x) == pytest.approx(expected, abs=1e-6)
