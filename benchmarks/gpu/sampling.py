"""Utilization of a GPU while a block runs, sampled by nvidia-smi."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

FIELDS = {"utilization.gpu": "gpu_utilization", "power.draw": "gpu_watts", "memory.used": "gpu_mib"}
INTERVAL_MS = 200


@contextmanager
def sampling(device: str) -> Iterator[dict[str, float]]:
    """Sample until the block ends; the yielded dict then holds the medians.

    `gpu_utilization` is the share of the time in which any kernel ran. The dict stays empty without nvidia-smi.
    """
    found: dict[str, float] = {}
    if not device.startswith("cuda") or shutil.which("nvidia-smi") is None:
        yield found
        return
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    command += [f"--loop-ms={INTERVAL_MS}", f"--id={device.partition(':')[2] or 0}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as sampler:
        try:
            yield found
        finally:
            sampler.terminate()
            output, _ = sampler.communicate(timeout=10)
            found.update(medians(output))


def medians(output: str) -> dict[str, float]:
    """Return the median of each field of nvidia-smi's lines; a field that the GPU does not report is missing."""
    lines = [line.split(", ") for line in output.splitlines() if line.count(",") == len(FIELDS) - 1]
    found = {}
    for index, name in enumerate(FIELDS.values()):
        values = [float(line[index]) for line in lines if line[index].strip().replace(".", "", 1).isdigit()]
        if values:
            found[name] = median(values) / (100 if name == "gpu_utilization" else 1)
    return found
