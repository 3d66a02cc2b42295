"""Times of Kubernetes objects: RFC 3339 in UTC, in whole seconds."""

import datetime


def timestamp(now: datetime.datetime) -> str:
    """Return a time in the API's format."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(now: datetime.datetime, time: str) -> float:
    """Return the seconds since a time of the API; 0 for an invalid one."""
    try:
        return (now - datetime.datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
