"""Model statistics in Triton's format, from the proxy's counters."""

from typing import Any

from shoal_proxy.batching.rates import ExecutionTimes
from shoal_proxy.observe.metrics import Histogram, Metrics


def model_statistics(name: str, version: str, metrics: Metrics, *, now_s: float, wall_s: float) -> dict[str, Any]:
    """Return a model's statistics since the start of the process.

    Args:
        name: the model's name.
        version: the model's version.
        metrics: the proxy's counters.
        now_s: the current time, in monotonic seconds.
        wall_s: the current time, in seconds since 1970.
    """
    executions = metrics.executions
    # The proxy's clock is monotonic; Triton reports milliseconds since 1970.
    last_ms = 0 if executions.last_s is None else int(1000 * (wall_s - now_s + executions.last_s))
    failures = sum(count for (_, status), count in metrics.requests.items() if status >= 400)
    requests = executions.requests
    return {
        "name": name,
        "version": version,
        "last_inference": last_ms,
        "inference_count": executions.rows,
        "execution_count": executions.batches,
        "inference_stats": {
            "success": _of_histogram(metrics.request_seconds),
            "fail": _duration(failures, metrics.failed_s),
            "queue": _of_histogram(metrics.queue_seconds),
            **_compute_statistics(requests),
            # There is no response cache.
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "batch_stats": [
            {"batch_size": rows, **_compute_statistics(times)} for rows, times in sorted(executions.by_rows.items())
        ],
    }


def _compute_statistics(times: ExecutionTimes) -> dict[str, Any]:
    return {
        "compute_input": _duration(times.count, times.input_s),
        "compute_infer": _duration(times.count, times.infer_s),
        "compute_output": _duration(times.count, times.output_s),
    }


def _of_histogram(histogram: Histogram) -> dict[str, int]:
    return _duration(sum(histogram.counts), histogram.total)


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": max(0, int(1e9 * seconds))}
