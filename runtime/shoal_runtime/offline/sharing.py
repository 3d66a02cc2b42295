"""What of a machine each of several engines is given: a GPU of its own, or its part of the cores. Pure."""

from collections.abc import Mapping, Sequence


def part_of_the_machine(
    environment: Mapping[str, str], number: int, engines: int, *, gpus: Sequence[str], cores: int
) -> dict[str, str]:
    """Return an engine's environment.

    Args:
        environment: of all; threads that it names stay as they are.
        number: which of the engines it is, from 0.
        engines: how many there are.
        gpus: those that may be seen, by number or by name.
        cores: that may be used.
    """
    if engines == 1:
        return dict(environment)
    if gpus:
        return {**environment, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
    # More threads than cores wait for one another.
    return {"OMP_NUM_THREADS": str(max(1, cores // engines)), **environment}


def seen_gpus(environment: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    """Return the GPUs that may be seen: those that are named, or all whose device files are there.

    Args:
        environment: may name some.
        devices: names of files, as ``nvidia0``; others are none of GPUs.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    numbers = (each.removeprefix("nvidia") for each in devices if each.startswith("nvidia"))
    return [str(number) for number in sorted(int(each) for each in numbers if each.isdecimal())]
