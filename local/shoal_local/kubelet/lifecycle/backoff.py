"""How long a container that keeps ending waits before it is started again."""

FIRST_S, LONGEST_S, FORGIVEN_S = 10.0, 300.0, 600.0


def next_streak(streak: int, ran_s: float) -> int:
    """Return the number of restarts in a row, after a run of this length. A long run clears the slate."""
    return 1 if ran_s >= FORGIVEN_S else streak + 1


def restart_delay_s(streak: int) -> float:
    """Return the wait before the next restart: none, 10 s, 20 s ... 5 min.

    ``streak`` is the number of restarts in a row that were made before.
    """
    return 0.0 if streak == 0 else min(FIRST_S * 2.0 ** min(streak - 1, 10), LONGEST_S)
