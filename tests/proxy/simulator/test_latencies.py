import pytest

from shoal_proxy.simulator.latencies import Latencies, LatencyError, parse_document, parse_terms


def mean_s(latencies: Latencies, rows: int, shape: str = "") -> float:
    return latencies.sizes(shape).at(rows)[0]


@pytest.mark.parametrize("text", ["4ms+0.15ms", "4 ms + 150us", ".004s+.00015s"])
def test_a_batch_and_each_row_make_a_line(text: str) -> None:
    latencies = parse_terms(text)

    assert [mean_s(latencies, rows) for rows in (1, 2, 64)] == pytest.approx([0.00415, 0.0043, 0.0136])


@pytest.mark.parametrize("text", ["", "4ms", "4+0.15", "4ms+1ms+1ms", "-4ms+1ms", "fast.jsn"])
def test_what_is_no_latency_states_what_is(text: str) -> None:
    with pytest.raises(LatencyError, match=r"4ms\+0\.15ms"):
        parse_terms(text)


def test_a_batch_takes_time() -> None:
    with pytest.raises(LatencyError, match="takes no time"):
        parse_terms("0ms+0ms")


def test_sizes_between_two_lie_between_their_times_and_above_the_last_time_goes_on_rising() -> None:
    latencies = parse_document({"8": 0.008, "1": 0.001, "4": 0.004})

    assert [mean_s(latencies, rows) for rows in (1, 2, 6, 8, 16)] == pytest.approx([0.001, 0.002, 0.006, 0.008, 0.016])


def test_what_is_padded_takes_what_the_larger_size_takes() -> None:
    sizes = [{"rows": 4, "mean_s": 0.004}, {"rows": 8, "mean_s": 0.005}]
    latencies = parse_document({"tables": [{"shapes": {}, "sizes": sizes, "padded": True}]})

    assert [mean_s(latencies, rows) for rows in (1, 4, 5, 8)] == [0.004, 0.004, 0.005, 0.005]


def test_the_response_of_a_proxy_is_read() -> None:
    latencies = parse_document(
        {
            "tables": [
                {"shapes": {}, "sizes": [{"rows": 1, "mean_s": 0.004, "p95_s": 0.005}]},
                {"shapes": {"x": [3, 4], "y": [2]}, "sizes": [{"rows": 1, "mean_s": 0.1, "p95_s": 0.1}]},
            ],
            "overhead_s": 0.001,
            "objective_s": 0.05,
            "max_batch_size": 64,
        }
    )

    assert (latencies.overhead_s, latencies.objective_s, latencies.max_batch_size) == (0.001, 0.05, 64)
    assert mean_s(latencies, 1, "x:3x4 y:2") == 0.1
    assert mean_s(latencies, 1, "unheard of") == 0.004


def test_times_spread_so_that_one_in_twenty_exceeds_the_95th_percentile() -> None:
    latencies = parse_document({"tables": [{"sizes": [{"rows": 1, "mean_s": 0.004, "p95_s": 0.005}]}]})

    assert latencies.sampler(lambda: 1.645)(1, "") == pytest.approx(0.005)
    assert latencies.sampler(lambda: -100.0)(1, "") > 0


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param([], "must be a JSON object", id="list"),
        pytest.param({}, "must be a JSON object", id="empty"),
        pytest.param({"tables": []}, "has not run a batch yet", id="no tables"),
        pytest.param({"tables": [1]}, "each of .tables. must be an object", id="table is no object"),
        pytest.param({"tables": [{}]}, '"sizes" must be a list', id="no sizes"),
        pytest.param({"tables": [{"sizes": [1]}]}, "each of .sizes. must be an object", id="size is no object"),
        pytest.param({"0": 0.1}, "'0' is not a number of rows", id="no rows"),
        pytest.param({"one": 0.1}, "'one' is not a number of rows", id="rows in words"),
        pytest.param({"1": "fast"}, "mean_s of 1 rows must be a number", id="time in words"),
        pytest.param({"1": True}, "mean_s of 1 rows must be a number", id="a truth"),
        pytest.param({"1": 0}, "must be above 0", id="no time"),
        pytest.param({"1": float("inf")}, "must be a number", id="infinity"),
        pytest.param({"1": 0.1, "01": 0.1}, "twice", id="twice"),
    ],
)
def test_a_malformed_table_is_rejected(document: object, message: str) -> None:
    with pytest.raises(LatencyError, match=message):
        parse_document(document)


@pytest.mark.parametrize(
    ("measured", "padded", "most", "guesses"),
    [
        ((1, 8, 32), True, 32, ""),
        ((1, 32), True, 32, "batches of 8 rows"),
        ((1, 8), True, 32, "batches of more than 8 rows"),
        ((1, 8, 32), False, 32, "batches between 1 and 8 rows, batches between 8 and 32 rows"),
        ((1,), False, 1, ""),
    ],
)
def test_sizes_that_were_concluded_from_others_are_guesses(
    measured: tuple[int, ...], padded: bool, most: int, guesses: str
) -> None:
    sizes = [{"rows": rows, "mean_s": 0.004, "measured": rows in measured} for rows in (1, 8, 32)]

    latencies = parse_document({"tables": [{"shapes": {}, "sizes": sizes, "padded": padded}]})

    assert latencies.sizes("").guesses(most) == guesses


def test_a_formula_guesses_nothing_and_a_table_of_nothing_measured_is_none() -> None:
    assert parse_terms("4ms+1ms").sizes("").guesses(1000) == ""
    with pytest.raises(LatencyError, match="none of the sizes has been measured"):
        parse_document({"tables": [{"sizes": [{"rows": 1, "mean_s": 0.004, "measured": False}]}]})
