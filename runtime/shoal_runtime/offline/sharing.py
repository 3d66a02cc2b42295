"""Division of a machine among several engine processes, by GPUs or cores. Pure."""

from collections.abc import Mapping, Sequence


def part_of_the_machine(
    environment: Mapping[str, str], number: int, engines: int, *, gpus: Sequence[str], cores: int
) -> dict[str, str]:
    """Return the environment variables of one engine process, limited to its share of the machine.

    Args:
        environment: variables of all engines; existing thread counts are kept.
        number: number of the engine, from 0.
        engines: number of engines.
        gpus: visible GPUs, by number or name.
        cores: number of usable cores.
    """
    if engines == 1:
        return dict(environment)
    if gpus:
        return {**environment, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
    # More threads than cores only wait for each other.
    return {"OMP_NUM_THREADS": str(max(1, cores // engines)), **environment}


def seen_gpus(environment: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    """Return the visible GPUs: those in ``CUDA_VISIBLE_DEVICES``, or all with a device file.

    Args:
        environment: environment variables.
        devices: file names in /dev, such as ``nvidia0``.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    # Such as nvidia0; nvidiactl and nvidia-uvm are no GPUs.
    numbers = (each.removeprefix("nvidia") for each in devices if each.startswith("nvidia"))
    return [str(number) for number in sorted(int(each) for each in numbers if each.isdecimal())]
