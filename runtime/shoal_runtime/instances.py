"""Several instances of the runtime in one container: one process each, and this one, which supervises them.

start    the first instance -> ready -> host and GPU have memory for all -> the others, in the precision of the first
         and of the same files
stuck    stopped by a signal, or no response for longer than a forward may take -> killed, and starts again
exit     status 2 or 3, such as a model that cannot be loaded, and no other instance runs -> exit with that status
         otherwise -> that instance starts again after a delay; the others continue
SIGTERM  SIGTERM to all -> exit 0 when all have ended
"""

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from shoal_runtime.errors import EXIT_LOAD_FAILED, EXIT_USAGE
from shoal_runtime.execution.threads import CGROUP
from shoal_runtime.liveness import health_client, until_stopped, until_stuck
from shoal_runtime.settings import Settings
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.instances import MODEL_DIGEST, PRECISION, instance_address
from shoal_schema.interfaces.metrics import DEVICE_MEMORY
from shoal_schema.process.child_process import kill_session, module_command
from shoal_schema.process.log_lines import word
from shoal_schema.process.restarts import Backoff, after_exit
from shoal_schema.resource.runtime import Precision

FINAL: Final = (EXIT_USAGE, EXIT_LOAD_FAILED)
"""Exit statuses that end the container if no other instance runs: another start would fail too."""
KILL_MARGIN_S: Final = 5.0
"""Time beyond the shutdown timeout after which an instance is killed."""
READY_CHECK_S: Final = 0.2
_MIB: Final = 1 << 20

logger = logging.getLogger(__name__)


def memory_shortage(
    instances: int,
    private_bytes: int,
    free_bytes: int,
    *,
    memory: str = "memory",
    remedy: str = "raise the memory limit",
) -> str | None:
    """Return an error message if the memory does not suffice for all instances, or None.

    Args:
        instances: number of instances that share the memory, one of which has started.
        private_bytes: memory that the first instance shares with no other process.
        free_bytes: memory that is left.
        memory: name of the memory in the message.
        remedy: alternative to fewer instances.
    """
    needed_bytes = (instances - 1) * private_bytes
    if needed_bytes <= free_bytes:
        return None
    return (
        f"{instances} instances do not fit into {memory}: each needs about {private_bytes // _MIB} MiB, and"
        f" {max(0, free_bytes) // _MIB} MiB are left. Lower runtime.instances, or {remedy}"
    )


def device_shortage(instances: int, ready: Mapping[str, Any]) -> str | None:
    """Return an error message if the device's memory does not suffice for all instances on it, or None.

    Args:
        instances: number of instances on the device of the first one.
        ready: body of the first instance's response for readiness.
    """
    if DEVICE_MEMORY not in ready:
        return None
    used_bytes, size_bytes, own_bytes = ready[DEVICE_MEMORY]
    return memory_shortage(
        instances, own_bytes, size_bytes - used_bytes, memory="the memory of one GPU", remedy="use more or larger GPUs"
    )


def instances_on_device(number: int, instances: int, devices: int) -> int:
    """Return the number of instances on the device of one of them; without visible devices, all share one."""
    return len(range(number % devices, instances, devices)) if devices else instances


def visible_devices(environ: Mapping[str, str], files: Iterable[str]) -> list[str]:
    """Return the CUDA devices that instances take in turns, as values of CUDA_VISIBLE_DEVICES.

    Args:
        environ: environment variables of this process.
        files: names of the files in /dev.
    """
    if listed := environ.get("CUDA_VISIBLE_DEVICES"):
        return listed.split(",")
    # MIG devices have no files of their own. A container runtime lists them in its own variable.
    if (listed := environ.get("NVIDIA_VISIBLE_DEVICES", "")).startswith("MIG-"):
        return listed.split(",")
    count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in files)
    return [str(number) for number in range(count)]


def supervise(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run all instances until a signal; return the exit status."""
    return asyncio.run(_Instances(settings, environ).run())


class _Instances:
    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._count = settings.instances
        # A device that the settings name, as cuda:1, belongs to all instances.
        named = ":" in settings.runtime.device
        self._devices = [] if named else visible_devices(environ, os.listdir("/dev"))
        self._chosen: Mapping[str, str] = {}
        """Variables with the precision and the model's files of the first ready instance; empty until then."""
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)
        stop = asyncio.create_task(self._stopping.wait())
        kept = [asyncio.create_task(self._keep(0))]
        others = asyncio.create_task(self._until_room())
        try:
            done, _ = await asyncio.wait((stop, *kept, others), return_when=asyncio.FIRST_COMPLETED)
            if others in done:
                if shortage := others.result():
                    logger.critical("the model cannot be loaded: %s", shortage)
                    return EXIT_LOAD_FAILED
                kept += [asyncio.create_task(self._keep(number)) for number in range(1, self._count)]
                done, _ = await asyncio.wait((stop, *kept), return_when=asyncio.FIRST_COMPLETED)
            return next((task.result() for task in kept if task in done), 0)
        finally:
            self._stopping.set()
            for task in (stop, others):
                task.cancel()
            await self._end(kept)

    async def _keep(self, number: int) -> int:
        """Start an instance again whenever it ends; return the status of a final exit, or 0 after a signal."""
        backoff = Backoff()
        while True:
            started_s = time.monotonic()
            process = await self._start(number)
            code = await self._until_ended(number, process)
            # Processes that the model has started hold the instance's sockets.
            kill_session(process.pid)
            if self._stopping.is_set():
                return 0
            if code in FINAL and all(each.returncode is not None for each in self._processes.values()):
                return code  # no log line: the last one is the instance's, and states the cause
            backoff = after_exit(backoff, started_s=started_s, now_s=time.monotonic())
            logger.warning("event=instance_ended instance=%d status=%d restart_in_s=%g", number, code, backoff.delay_s)
            try:
                async with asyncio.timeout(backoff.delay_s):
                    await self._stopping.wait()
                return 0
            except TimeoutError:
                continue

    async def _until_ended(self, number: int, process: asyncio.subprocess.Process) -> int:
        """Wait until an instance ends, and kill it if it is stopped or stuck; return its exit status."""
        ended = asyncio.create_task(process.wait())
        limit_s = self._settings.runtime.forward_timeout_seconds
        async with health_client(self._address(number)) as client:
            faults = [
                asyncio.create_task(until_stopped(Path(f"/proc/{process.pid}/stat"))),
                asyncio.create_task(until_stuck(client, limit_s)),
            ]
            try:
                await asyncio.wait((ended, *faults), return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    reason = next(fault.result() for fault in faults if fault.done())
                    logger.error("event=instance_killed instance=%d reason=%s", number, word(reason))
                    kill_session(process.pid)
                return await ended
            finally:
                for task in (ended, *faults):
                    task.cancel()

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        address = self._address(number)
        own = {"SHOAL_RUNTIME_INSTANCE": str(number), "SHOAL_RUNTIME_LISTEN": str(address)}
        if self._devices:
            own["CUDA_VISIBLE_DEVICES"] = self._devices[number % len(self._devices)]
        if (fraction := self._settings.runtime.memory_fraction) is not None:
            share = float(fraction) / instances_on_device(number, self._count, len(self._devices))
            own["SHOAL_RUNTIME_MEMORY_FRACTION"] = f"{share:.9f}"
        process = await asyncio.create_subprocess_exec(
            # In a session of its own: Ctrl-C in a terminal reaches this process only, which stops the others.
            *module_command("shoal_runtime"),
            env={**self._environ, **self._chosen, **own},
            start_new_session=True,
        )
        self._processes[number] = process
        logger.info("event=instance_started instance=%d address=%s pid=%d", number, address, process.pid)
        return process

    def _address(self, number: int) -> Address:
        return instance_address(self._settings.process.listen, number)

    async def _until_room(self) -> str | None:
        """Wait until the first instance is ready, and read its precision; return an error message if no other fits."""
        async with health_client(self._address(0)) as client:
            while True:
                try:
                    if (response := await client.get("/v2/health/ready", timeout=10)).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(READY_CHECK_S)
        ready = response.json()
        # A model that keeps the dtype of its file reports none, and does so again with Float32.
        self._chosen = {
            "SHOAL_RUNTIME_CHOSEN_PRECISION": ready.get(PRECISION, Precision.FLOAT32),
            "SHOAL_RUNTIME_MODEL_DIGEST": ready[MODEL_DIGEST],
            # Others load what the first one has fetched, without a request to a server that may have a newer model.
            "SHOAL_MODEL_FETCHED": "true",
        }
        sharing = instances_on_device(0, self._count, len(self._devices))
        if shortage := device_shortage(sharing, ready):
            return shortage
        private_bytes, free_bytes = _private_bytes(self._processes[0].pid), _free_bytes()
        if private_bytes is None or free_bytes is None:
            return None
        return memory_shortage(self._count, private_bytes, free_bytes)

    async def _end(self, kept: list["asyncio.Task[int]"]) -> None:
        """Stop all instances; kill those that do not end in time."""
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        _, late = await asyncio.wait(kept, timeout=self._settings.process.shutdown_timeout_s + KILL_MARGIN_S)
        for process in self._processes.values():
            if process.returncode is None:
                kill_session(process.pid)
        if late:
            await asyncio.wait(late)


def _private_bytes(pid: int) -> int | None:
    """Return the memory that a process shares with no other one; None if it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))


def _free_bytes(cgroup: Path = CGROUP) -> int | None:
    """Return the memory that is left in the machine, or in the control group (v2); None if it cannot be read."""
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes = int(line.split()[1]) * 1024
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return free_bytes
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        # Inactive pages of files can be dropped.
        used_bytes = int((cgroup / "memory.current").read_text()) - int(stat["inactive_file"])
        return min(free_bytes, int(limit) - used_bytes)
    except (OSError, ValueError, KeyError):
        return None
