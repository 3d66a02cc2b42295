"""The weekly window in which upgrades may start."""

from dataclasses import dataclass

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MIN = 24 * 60
_WEEK_MIN = 7 * _DAY_MIN
_EPOCH_DAY = _DAYS.index("Thu")


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly window, in UTC."""

    days: frozenset[int] = frozenset(range(len(_DAYS)))
    """Weekdays on which it opens, from 0 for Monday."""
    start_min: int = 0
    """Minute of the day."""
    end_min: int = 0
    """Minute of the day; of the next day, unless it is after the start."""

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Parse a window such as ``Sat,Sun 02:00-05:00 UTC``; empty: always open."""
        if not text:
            return cls()
        *days, hours = text.removesuffix(" UTC").split(" ")
        start_min, end_min = (60 * int(time[:2]) + int(time[3:]) for time in hours.split("-"))
        named = days[0].split(",") if days else _DAYS
        return cls(frozenset(map(_DAYS.index, named)), start_min, end_min)

    def opens_in_s(self, epoch_s: float) -> float:
        """Return the time until the window opens (s); 0 while it is open."""
        # Minutes since Monday 00:00 UTC.
        now_min = (epoch_s / 60 + _EPOCH_DAY * _DAY_MIN) % _WEEK_MIN
        length_min = (self.end_min - self.start_min) % _DAY_MIN or _DAY_MIN
        since_min = [(now_min - day * _DAY_MIN - self.start_min) % _WEEK_MIN for day in self.days]
        return 0.0 if min(since_min) < length_min else (_WEEK_MIN - max(since_min)) * 60
