"""The operator parses the batch process's progress."""

from shoal_operator.progress import read_progress
from shoal_runtime.offline.progress import Tally
from shoal_schema.progress import MAX_BYTES, Done, Progress, share, together


def test_the_operator_reads_what_the_batch_program_tells() -> None:
    tally = Tally(shards_total=40, bytes_total=400, shards_done=3, bytes_done=30, rows=12, failed=1, begun_s=1.0)
    tally.before, tally.resumed, tally.siblings = Done(1, 2, 0, 9), Done(2, 8, 1, 20), Done(5, 5, 5, 5)
    reported = tally.encoded(3.0, "x" * 2000)

    assert len(reported) <= MAX_BYTES
    assert read_progress(reported) == Progress(
        shards_total=40,
        bytes_total=400,
        before=Done(1, 2, 0, 9),
        own=Done(5, 20, 2, 50),
        rows_per_second=6.0,
        message="x" * 2000,
    )


def test_of_several_workers_what_was_there_before_counts_once() -> None:
    before = Done(shards=2, rows=20, failed_rows=1, bytes=100)
    reported = [Progress(40, 400, before, Done(shards=n, rows=10 * n, bytes=50 * n), 1.0) for n in (1, 2)]

    assert together(reported) == Done(shards=5, rows=50, failed_rows=1, bytes=250)
    assert share(reported) == 250 / 400
    assert (together([]), share([])) == (Done(), 0.0)
