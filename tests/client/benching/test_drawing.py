from xml.etree import ElementTree

from shoal.benching.drawing import WIDTH, bars, legend, steps_table, svg
from shoal.benching.knee import StepVerdict
from tests.client.benching.test_advice import step

STEPS = [step(200.0, parts={"queue": 35.0}), step(100.0)]


def test_steps_stand_in_the_order_of_their_rates_with_the_knee_named() -> None:
    _, first, second = steps_table(STEPS, STEPS[1]).splitlines()

    assert first.split()[0] == "100"
    assert first.endswith("knee")
    assert first.split()[1:4] == ["100", "100%", "100"]
    assert second.split()[7:11] == ["35", "1", "10", "2"]
    assert second.endswith("held")


def test_every_column_and_verdict_is_explained() -> None:
    headings, words = steps_table(STEPS, None).splitlines()[0], legend(12.5)

    assert "within 12.5 ms" in words
    for name in ("in time", "answered/s", "queue", "batch", "runtime", "rest", "rows", "lost"):
        assert name in headings
        assert name in words
    assert all(verdict.value in words for verdict in StepVerdict)


def test_bars_are_as_long_as_the_latency_and_split_as_it_is() -> None:
    _, short, long = bars(STEPS, None).splitlines()

    bar = long.partition("|")[2].split()[0]
    assert len(bar) == WIDTH
    assert bar.count("q") == round(WIDTH * 35 / 48)
    assert len(short.partition("|")[2].split()[0]) == round(WIDTH * 15 / 48)


def test_the_svg_is_a_document_with_a_bar_for_each_part() -> None:
    root = ElementTree.fromstring(svg(STEPS, STEPS[1], "adder <& more>"))

    kind = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{kind}rect")) == 4 * len(STEPS) + 4
    assert next(each.text for each in root.iter(f"{kind}text")) == "adder <& more>"


def test_a_server_that_says_nothing_has_bars_of_one_part() -> None:
    silent = [step(100.0, parts_ms={})]

    assert "." * WIDTH in bars(silent, None)
    ElementTree.fromstring(svg(silent, None, "x"))
