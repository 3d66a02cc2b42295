"""Ages as kubectl writes them: ``5m30s``, ``3h``, ``2d``."""

from datetime import UTC, datetime


def age(created: str | None, now: datetime) -> str:
    """Return the time since an API timestamp, ``<unknown>`` without one."""
    if not created:
        return "<unknown>"
    then = datetime.fromisoformat(created.replace("Z", "+00:00")).astimezone(UTC)
    return human_duration(int((now - then).total_seconds()))


def human_duration(seconds: int) -> str:
    """Round a duration the way kubectl does: finer while it is short."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s") if minutes >= 2 else f"{seconds}s"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m") if hours >= 3 else f"{minutes}m"
    return f"{hours}h" if hours < 48 else _long(hours, days)


def _long(hours: int, days: int) -> str:
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f"{small}{small_unit}" if small else "")
