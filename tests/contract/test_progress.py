"""What the batch program tells of its progress is what the operator reads."""

from shoal_operator.progress import read_progress
from shoal_runtime.offline.progress import Tally
from shoal_schema.progress import MAX_BYTES, Progress


def test_the_operator_reads_what_the_batch_program_tells() -> None:
    tally = Tally(shards_total=40, bytes_total=400, shards_done=3, bytes_done=30, rows=12, failed=1, begun_s=1.0)
    told = tally.encoded(3.0, "x" * 2000)

    assert len(told) <= MAX_BYTES
    assert read_progress(told) == Progress(
        shards_done=3,
        shards_total=40,
        bytes_done=30,
        bytes_total=400,
        rows=12,
        failed_rows=1,
        rows_per_second=6.0,
        message="x" * 2000,
    )
