"""Several instances of the runtime behind one address."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal_runtime.execution.threads import default_threads
from shoal_runtime.instances import device_shortage, instances_on_device, memory_shortage, visible_devices
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.instances import instance_address
from tests.runtime.fakes import UnixConnection

MIB = 1 << 20
HANDLER = """
import os, time
from pathlib import Path
from shoal_runtime import TensorSpec

class Model:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        if context.parameters.get("broken"):
            raise ValueError("no weights")
        if memory := context.parameters.get("device_memory"):
            from shoal_runtime.execution.torch_placement import CpuPlacement

            CpuPlacement.memory = lambda self: tuple(memory)
        note = f"{os.getpid()} threads={context.threads} fraction={os.environ.get('SHOAL_RUNTIME_MEMORY_FRACTION')}"
        Path(os.environ["TEST_FOLDER"], note).touch()
        if context.parameters.get("forks"):
            if (child := os.fork()) == 0:
                time.sleep(300)
            Path(os.environ["TEST_FOLDER"], f"{child} child").touch()

    def forward(self, batch):
        return batch["x"]
"""

# A model that is fast in bfloat16 for the first instance, and in float16 for the others.
MOODY = """
import os, time
from shoal_runtime import TensorSpec

FAST = "float16" if int(os.environ["SHOAL_RUNTIME_INSTANCE"]) else "bfloat16"

class Model:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        self.seconds = 0.001 if str(context.dtype) == f"torch.{FAST}" else 0.01

    def forward(self, batch):
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return batch["x"]
"""


def test_all_instances_must_fit_into_memory() -> None:
    assert memory_shortage(3, 100 * MIB, 200 * MIB) is None
    message = memory_shortage(3, 100 * MIB, 199 * MIB)
    assert message is not None
    assert "100 MiB" in message
    assert "199 MiB" in message


@pytest.mark.parametrize(
    ("sharing", "free_mib", "fits"), [(1, 0, True), (2, 600, True), (2, 599, False), (3, 1199, False), (3, 1200, True)]
)
def test_all_instances_on_a_device_must_fit_into_its_memory(sharing: int, free_mib: int, fits: bool) -> None:
    total = 8000 * MIB
    message = device_shortage(sharing, {"ready": True, "device_memory": [total - free_mib * MIB, total, 600 * MIB]})

    if fits:
        assert message is None
    else:
        assert message is not None
        assert "GPU" in message
        assert f"{free_mib} MiB" in message


def test_a_device_without_memory_of_its_own_is_not_checked() -> None:
    assert device_shortage(8, {"ready": True}) is None


@pytest.mark.parametrize(
    ("instances", "devices", "sharing"), [(4, 0, [4, 4, 4, 4]), (4, 4, [1, 1, 1, 1]), (3, 2, [2, 1, 2]), (1, 2, [1])]
)
def test_instances_share_devices_in_turns(instances: int, devices: int, sharing: list[int]) -> None:
    assert [instances_on_device(number, instances, devices) for number in range(instances)] == sharing


@pytest.mark.parametrize(
    ("environ", "files", "devices"),
    [
        ({}, ["null", "sda"], []),
        ({}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ["nvidia0"], ["MIG-a", "MIG-b"]),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ["nvidia0"], ["MIG-a", "MIG-b"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ["nvidia0", "nvidia1"], ["0", "1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, ["nvidia0"], ["0"]),
    ],
)
def test_instances_take_the_visible_devices(environ: dict[str, str], files: list[str], devices: list[str]) -> None:
    assert visible_devices(environ, files) == devices


@pytest.mark.parametrize(("cores", "limit", "instances", "threads"), [(8, None, 2, 4), (8, 4, 2, 2), (2, 1, 4, 1)])
def test_instances_share_the_cores(cores: int, limit: int | None, instances: int, threads: int) -> None:
    assert default_threads(cores, limit, instances=instances) == threads


def test_each_instance_has_an_address() -> None:
    assert [str(instance_address(Address(path="/run/s"), number)) for number in range(3)] == [
        "unix:/run/s",
        "unix:/run/s.1",
        "unix:/run/s.2",
    ]
    assert str(instance_address(Address("127.0.0.1", 8001), 2)) == "127.0.0.1:8003"


class Supervised:
    """Two instances of a model, and their supervisor."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal_runtime"],
            env={
                **os.environ,
                "SHOAL_MODEL_URI": str(folder / "model"),
                "SHOAL_MODEL_NAME": "m",
                "SHOAL_RUNTIME_LISTEN": f"unix:{folder}/s",
                "SHOAL_RUNTIME_DEVICE": "cpu",
                "SHOAL_RUNTIME_INSTANCES": "2",
                "TEST_FOLDER": str(folder),
                **environ,
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def loaded(self) -> set[int]:
        """Return the ids of the processes that have loaded the model."""
        return {int(path.name.split()[0]) for path in self.folder.glob("* threads=*")}

    def children(self) -> set[int]:
        """Return the ids of the processes that the model has started."""
        return {int(path.name.split()[0]) for path in self.folder.glob("* child")}

    def precision(self, number: int) -> str | None:
        """Return the precision that an instance reports."""
        connection = UnixConnection(instance_address(Address(path=f"{self.folder}/s"), number).path)
        connection.request("GET", "/v2/models/m")
        parameters = json.loads(connection.getresponse().read())["parameters"]
        connection.close()
        chosen: str | None = parameters.get("precision")
        return chosen

    def wait_logged(self, text: str) -> None:
        """Wait until a line of the log contains a text; earlier lines are dropped."""
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        for _ in self.attempts():
            if text in (self.process.stderr.readline() or ""):
                break
        os.set_blocking(self.process.stderr.fileno(), True)

    def wait_ready(self, number: int) -> None:
        """Wait until an instance is ready."""
        address = instance_address(Address(path=f"{self.folder}/s"), number)
        for _ in self.attempts():
            connection = UnixConnection(address.path)
            try:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                continue
            finally:
                connection.close()

    def attempts(self) -> Iterator[None]:
        """Yield until the test's time is over."""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            yield
            select.select([], [], [], 0.05)
        self.process.kill()
        raise AssertionError(self.process.communicate()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    (tmp_path / "model").mkdir()
    started: list[Supervised] = []

    def start_it(handler: str = HANDLER, **environ: str) -> Supervised:
        (tmp_path / "model" / "handler.py").write_text(handler)
        started.append(Supervised(tmp_path, **environ))
        return started[-1]

    yield start_it
    for each in started:
        each.process.kill()
        each.process.communicate()


def exists(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.integration
def test_an_instance_that_is_killed_starts_again_and_the_other_continues(start: Callable[..., Supervised]) -> None:
    supervised = start()
    for number in (0, 1):
        supervised.wait_ready(number)
    first, second = sorted(supervised.loaded())

    os.kill(second, signal.SIGKILL)
    for _ in supervised.attempts():
        if len(supervised.loaded()) == 3:
            break
    supervised.wait_ready(1)

    assert exists(first)
    supervised.process.terminate()
    assert supervised.process.wait(60) == 0
    assert not any(exists(pid) for pid in supervised.loaded())


@pytest.mark.integration
def test_an_instance_that_is_stopped_is_killed_and_starts_again(start: Callable[..., Supervised]) -> None:
    supervised = start()
    for number in (0, 1):
        supervised.wait_ready(number)
    first, second = sorted(supervised.loaded())

    os.kill(second, signal.SIGSTOP)
    supervised.wait_logged("event=instance_killed instance=1")
    for _ in supervised.attempts():
        if len(supervised.loaded()) == 3:
            break
    supervised.wait_ready(1)

    assert [exists(first), exists(second)] == [True, False]


@pytest.mark.integration
def test_processes_that_a_model_has_started_end_with_its_instance(start: Callable[..., Supervised]) -> None:
    supervised = start(SHOAL_MODEL_PARAMETERS='{"forks": true}')
    for number in (0, 1):
        supervised.wait_ready(number)
    before = supervised.children()

    # They hold the instance's sockets, so that no other one could take its address.
    os.kill(max(supervised.loaded()), signal.SIGKILL)
    for _ in supervised.attempts():
        if len(supervised.children()) == 3:
            break
    supervised.wait_ready(1)

    assert [exists(pid) for pid in sorted(before)] == [True, False]
    supervised.process.terminate()
    assert supervised.process.wait(60) == 0
    assert not any(exists(pid) for pid in supervised.children())


@pytest.mark.integration
def test_a_model_that_cannot_be_loaded_any_more_ends_no_other_instance(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    needed = (
        "import os, pathlib\n"
        "FOLDER = pathlib.Path(os.environ['TEST_FOLDER'])\n"
        "if not FOLDER.joinpath('weights').exists():\n"
        "    FOLDER.joinpath(f'{os.getpid()} failed').touch()\n"
        "    raise OSError\n"
    )
    (tmp_path / "weights").touch()
    supervised = start(handler=needed + HANDLER)
    for number in (0, 1):
        supervised.wait_ready(number)
    first, second = sorted(supervised.loaded())

    (supervised.folder / "weights").rename(supervised.folder / "elsewhere")
    os.kill(second, signal.SIGKILL)
    for _ in supervised.attempts():
        if len(list(supervised.folder.glob("* failed"))) == 2:
            break

    assert exists(first)
    supervised.wait_ready(0)


@pytest.mark.integration
def test_no_instance_loads_a_model_that_has_changed(start: Callable[..., Supervised]) -> None:
    supervised = start()
    for number in (0, 1):
        supervised.wait_ready(number)
    first, second = sorted(supervised.loaded())

    (supervised.folder / "model" / "handler.py").write_text(HANDLER.replace('batch["x"]', '2 * batch["x"]'))
    os.kill(second, signal.SIGKILL)
    supervised.wait_logged("the model's files have changed")

    assert supervised.loaded() == {first, second}, "nothing of the other model has run"
    supervised.wait_ready(0)
    assert exists(first)
    (supervised.folder / "model" / "handler.py").write_text(HANDLER)
    supervised.wait_ready(1)


@pytest.mark.integration
def test_all_instances_have_the_precision_of_the_first(start: Callable[..., Supervised]) -> None:
    supervised = start(SHOAL_RUNTIME_PRECISION_ABS_ERROR="1", handler=MOODY)
    for number in (0, 1):
        supervised.wait_ready(number)

    assert [supervised.precision(number) for number in (0, 1)] == ["BFloat16", "BFloat16"]


@pytest.mark.integration
def test_no_instance_outlives_a_supervisor_that_is_killed(start: Callable[..., Supervised]) -> None:
    supervised = start()
    for number in (0, 1):
        supervised.wait_ready(number)

    supervised.process.kill()

    for _ in supervised.attempts():
        if not any(exists(pid) for pid in supervised.loaded()):
            break


@pytest.mark.integration
def test_a_model_that_cannot_be_loaded_ends_all(start: Callable[..., Supervised]) -> None:
    supervised = start(SHOAL_MODEL_PARAMETERS='{"broken": true}')
    _, output = supervised.process.communicate(timeout=60)

    assert supervised.process.returncode == 3
    # The operator and `shoal serve` report the last line.
    assert "no weights" in output.splitlines()[-1]


@pytest.mark.integration
def test_no_other_instance_starts_if_the_memory_of_the_device_does_not_suffice(
    start: Callable[..., Supervised],
) -> None:
    supervised = start(SHOAL_MODEL_PARAMETERS='{"device_memory": [6000000000, 8000000000, 5000000000]}')
    _, output = supervised.process.communicate(timeout=60)

    assert supervised.process.returncode == 3
    assert "the memory of one GPU" in output
    assert len(supervised.loaded()) == 1


@pytest.mark.integration
def test_instances_on_one_device_divide_its_share_of_memory(start: Callable[..., Supervised]) -> None:
    supervised = start(
        CUDA_VISIBLE_DEVICES="",
        SHOAL_RUNTIME_MEMORY_FRACTION="0.5",
        SHOAL_MODEL_PARAMETERS='{"device_memory": [3000000000, 8000000000, 5000000000]}',
    )
    for number in (0, 1):
        supervised.wait_ready(number)

    assert [path.name.rpartition("=")[2] for path in supervised.folder.glob("* threads=*")] == ["0.250000000"] * 2
