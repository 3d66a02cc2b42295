"""A graph whose way is Python of the user's."""

import textwrap
from concurrent.futures import ThreadPoolExecutor
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.graph.canonical import canonical, readable
from shoal_proxy.graph.link import GraphLink
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.wire.datatypes import float32_to_bfloat16
from tests import plain
from tests.calls import RawConnection, row, v2_body
from tests.fakes import FakeRuntime
from tests.graphs import RunningGraph, running_graph
from tests.proxy.graph.test_graph_end_to_end import PATH, chain, refusing, send

STEPS = [{"name": "first"}, {"name": "second"}]


def composed(body: str, *, inputs: str = '{"x": "FP32[4]"}', outputs: str = '{"y": "FP32[4]"}') -> dict[str, Any]:
    """Return a graph of two steps with a composer of this body."""
    run = textwrap.indent(textwrap.dedent(body).strip(), "        ")
    head = f"import asyncio\nimport sys\nimport time\n\n\nclass Way:\n    inputs = {inputs}\n    outputs = {outputs}\n"
    return {"steps": STEPS, "composer": {"source": f"{head}\n    async def run(self, inputs, steps):\n{run}\n"}}


AGAIN = composed(
    """
    x = inputs["x"]
    while x.max() < 100:
        x = (await steps.first(x=x))["y"]
    return {"y": x}
    """
)


def data(answer: Any) -> list[float]:
    """Return what the only output holds."""
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    found: list[float] = output["data"]
    return found


def test_a_loop_that_no_document_holds() -> None:
    with running_graph(chain(), AGAIN) as running:
        assert data(send(running, [5, 1])) == [32 * value for start in (5, 1) for value in row(start)]
        described = plain.get(f"{running.url}/v2/models/graph").json()
        assert [(each["name"], each["datatype"], each["shape"]) for each in described["inputs"]] == [
            ("x", "FP32", [-1, 4])
        ]
        assert [each["name"] for each in described["outputs"]] == ["y"]
        assert plain.get(f"{running.admin_url}/v1/load").json()["graph"]["reason"] == "GraphValid"
        metrics = plain.get(f"{running.admin_url}/metrics").text
        assert 'shoal_proxy_step_seconds_count{step="first"} 5.0' in metrics


def test_steps_beside_one_another_and_what_each_client_gets_are_its_own() -> None:
    spec = composed(
        """
        one, two = await asyncio.gather(steps.first(x=inputs["x"]), steps.second(x=inputs["x"].tolist()))
        return {"y": one["y"] + two["y"]}
        """
    )
    with running_graph(chain(), spec) as running:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda value: send(running, [value, value + 0.5]), range(32)))
        for value, answer in enumerate(answers):
            assert data(answer) == [4 * each for start in (value, value + 0.5) for each in row(start)]


def test_a_buffer_that_code_fills_again_and_again_is_no_other_clients() -> None:
    spec = composed(
        """
        if not hasattr(self, "own"):
            import numpy
            self.own = numpy.zeros((64, 4), numpy.float32)
        self.own[:len(inputs["x"])] = inputs["x"]
        asked = steps.first(x=self.own[:len(inputs["x"])])
        answer = await asked
        self.own[:len(answer["y"])] = answer["y"]
        return {"y": self.own[:len(answer["y"])]}
        """
    )
    with running_graph(chain(), spec) as running:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda value: send(running, [value] * 32), range(400)))
        for value, answer in enumerate(answers):
            assert data(answer) == [2 * each for each in row(value)] * 32


def test_a_step_that_fails_is_the_graphs_or_caught() -> None:
    models = {"first": refusing(503, "busy", **{"retry-after": "7"}), "second": FakeRuntime()}
    with running_graph(models, composed('return await steps.first(x=inputs["x"])')) as running:
        answer = send(running, [1])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
        assert answer.json()["error"].startswith("step first: busy")
    caught = composed(
        """
        try:
            return await steps.first(x=inputs["x"])
        except steps.Failed as failed:
            assert (failed.step, failed.status, failed.rows) == ("first", 503, ()), failed
            return await steps.second(x=inputs["x"])
        """
    )
    with running_graph(models, caught) as running:
        assert data(send(running, [1])) == [2 * value for value in row(1)]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ('raise steps.Refused("too dark", status=422)', 422, "too dark"),
        ('raise steps.Refused("too dark", row=1)', 400, "row 1: too dark"),
        ('import numpy as np\nraise steps.Refused("dark", row=np.int64(1), status=np.int64(422))', 422, "row 1: dark"),
        ('raise steps.Refused("dark", status=200)', 500, "400 to 499, not 200"),
        ('raise steps.Refused("too dark", row=2)', 500, "row 2 of 2: too dark"),
        (
            "return 1",
            500,
            "the composer's result is a int",
        ),
        (
            'return steps.first(x=inputs["x"])',
            500,
            "the composer's result is a coroutine",
        ),
        ('return await steps.first(inputs["x"])', 500, "TypeError: steps.first takes its inputs by name: x=..."),
        ('raise steps.Refused("bad \\ud800", row=0)', 400, "row 0: bad \\ud800"),
        (
            'raise steps.Refused("odd", status=404.5)',
            500,
            "TypeError: 'float' object cannot be interpreted as an integer",
        ),
        ('raise steps.Refused("m" * 5_000_000)', 400, "m" * 4096),
        (
            "async def look():\n    raise steps.Refused('too dark', row=1, status=422)\n"
            "async with asyncio.TaskGroup() as group:\n    group.create_task(look())",
            422,
            "row 1: too dark",
        ),
        ("return {}", 500, "the composer's result does not hold 'y'"),
        (
            'return {"y": inputs["x"], "z": 1}',
            500,
            "the composer's result holds 'z'",
        ),
        ('return {"y": inputs["x"][:1]}', 500, "1 rows, expected 2"),
        ('return {"y": inputs["x"][:, :2]}', 500, "'y' has the shape (2, 2)"),
        ('return {"y": [["a"] * 4] * 2}', 500, "'y' is not FP32: it is <U1"),
        ('return await steps.first(z=inputs["x"])', 500, "step first holds 'z', expected x"),
        ('return {"y": [[1e300] * 4] * 2}', 500, "it cannot hold 1e+300"),
        ("return await steps.first()", 500, "step first does not hold 'x'"),
        ('return await steps.third(x=inputs["x"])', 500, "there is no step 'third'"),
        ("raise RuntimeError('seven is bad')", 500, "the composer raised RuntimeError: seven is bad"),
        ("sys.exit(3)", 500, "the composer raised SystemExit: 3"),
        ("raise asyncio.CancelledError", 500, "the composer cancelled itself"),
        ("asyncio.current_task().cancel()\nawait asyncio.sleep(1)", 500, "the composer cancelled itself"),
        (
            "class Odd(Exception):\n    def __str__(self):\n        sys.exit(3)\nraise Odd",
            500,
            "the composer raised Odd: (its text raises SystemExit)",
        ),
        (
            "e = ExceptionGroup('deep', [OSError()])\n"
            "for _ in range(5000):\n    e = ExceptionGroup('deep', [e])\nraise e",
            500,
            "the composer raised ExceptionGroup: deep (1 sub-exception)",
        ),
    ],
)
def test_what_its_code_does_wrong_is_within(body: str, status: int, said: str) -> None:
    with running_graph(chain(), composed(body)) as running:
        for _ in range(2):  # and the next client is served as well
            answer = send(running, [1, 2])
            assert answer.status_code == status, answer.text
            assert said in answer.json()["error"]


def test_a_step_that_is_called_with_no_rows_gives_none() -> None:
    models, spec = (
        chain(),
        composed('y = (await steps.first(x=inputs["x"][:0]))["y"]\nreturn {"y": [*y, *inputs["x"]]}'),
    )
    with running_graph(models, spec) as running:
        assert data(send(running, [3])) == list(row(3))
        assert models["first"].seen == []


def test_of_rows_that_fail_at_a_step_none_is_accepted_for_a_row_of_the_client() -> None:
    failed = {"row": 0, "status": 422, "message": "four is odd"}
    models = chain()
    models["first"].respond = lambda seen: (422, {}, orjson.dumps({"error": "row", "errors": [failed]}))
    with running_graph(models, composed('return await steps.first(x=inputs["x"][1:])')) as running:
        answer = send(running, [1, 2])
        assert (answer.status_code, "errors" in answer.json()) == (422, False)
        assert answer.json()["error"] == "step first: among the rows of its call, row 0: four is odd"


def test_numbers_of_bf16_are_numbers_to_its_code() -> None:
    bits = {"x": float32_to_bfloat16(np.array([[0.5, 1.5, -2, nan]], np.float32))}
    read = readable(bits, {"x": Tensor("BF16", (4,), {})})
    np.testing.assert_array_equal(read["x"], np.array([[0.5, 1.5, -2, nan]], np.float32))
    for given in (read["x"], [[0.5, 1.5, -2, nan]]):
        written, rows = canonical({"x": given}, {"x": Tensor("BF16", (4,), {})}, frozenset(), "it")
        assert (written["x"].tolist(), rows) == (bits["x"].tolist(), 1)
    whole, _ = canonical({"x": np.array([3], np.uint16)}, {"x": Tensor("BF16", (), {})}, frozenset(), "it")
    assert readable(whole, {"x": Tensor("BF16", (), {})})["x"].tolist() == [3]
    with pytest.raises(ValueError, match=r"1e\+300"):
        canonical({"x": [1e300]}, {"x": Tensor("BF16", (), {})}, frozenset(), "it")


def test_the_deadline_is_the_steps_too_and_code_that_never_ends_is_left() -> None:
    spec = composed(
        """
        assert 0.2 < steps.left_s < 0.9, steps.left_s
        if inputs["x"][0, 0] == 1:
            await asyncio.sleep(3600)
        return await steps.first(x=inputs["x"])
        """
    )
    models = chain()
    with running_graph(models, spec) as running:
        within = {"headers": {"x-request-timeout-ms": "800"}}
        assert send(running, [1], **within).status_code == 504
        assert data(send(running, [2], **within)) == [2 * value for value in row(2)]
        assert 0 < int(models["first"].seen[-1].headers["x-request-timeout-ms"]) < 800


def test_code_that_blocks_holds_up_no_probe_and_is_within() -> None:
    with running_graph(chain(), composed("time.sleep(8)")) as running:
        late = send(running, [1], headers={"x-request-timeout-ms": "300"})
        assert late.status_code == 504
        assert plain.get(f"{running.admin_url}/healthz").status_code == 200
        running.until(lambda: not running.proxy.link.ready)
        state = plain.get(f"{running.admin_url}/v1/load").json()["graph"]
        assert (state["reason"], "blocked the event loop" in state["message"]) == ("InvalidGraph", True)
        running.until(lambda: running.proxy.link.ready)


def test_cancelled_steps_release_their_memory() -> None:
    hedged = composed(
        """
        asked = [asyncio.create_task(ask(x=inputs["x"])) for ask in (steps.first, steps.second)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
        """
    )
    models = chain()
    with running_graph(models, hedged) as running:
        link = running.proxy.link
        assert isinstance(link, GraphLink)
        for value in range(50):
            if value == 25:  # from here on one of the two never answers
                running.call(models["first"].gate.clear)
            assert data(send(running, [value])) == [2 * each for each in row(value)]
        running.until(lambda: models["first"].connections == 0)
        running.until(lambda: link._room.used_bytes == 0)
        running.call(models["first"].gate.set)
        assert data(send(running, [1])) == [2 * each for each in row(1)]


def test_a_step_called_after_the_request_is_not_run() -> None:
    spec = composed(
        """
        async def later():
            await Way.goes_on.wait()
            try:
                await steps.first(x=inputs["x"])
            except RuntimeError as error:
                return len(str(error))
        if hasattr(Way, "late"):
            Way.goes_on.set()
            return {"y": inputs["x"] * await Way.late}
        Way.goes_on, Way.late = asyncio.Event(), asyncio.create_task(later())
        return {"y": inputs["x"]}
        """
    )
    models = chain()
    said = len("step first is called after the request has ended")
    with running_graph(models, spec) as running:
        assert data(send(running, [1])) == row(1)
        assert data(send(running, [1])) == [said * each for each in row(1)]
        assert models["first"].seen == []


def test_a_client_that_disconnects_ends_the_code_and_its_steps() -> None:
    models = chain()
    models["first"].gate.clear()
    with running_graph(models, AGAIN) as running:
        body = orjson.dumps(v2_body([row(1)]))
        connection = RawConnection(running.address)
        connection.send(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)), body)
        running.until(lambda: bool(models["first"].seen))
        connection.socket.close()
        running.until(lambda: running.proxy.dispatcher.settled)
        models["first"].gate.set()
        running.until(lambda: not running.proxy.link._walks)  # type: ignore[attr-defined]
        assert data(send(running, [50])) == [2 * value for value in row(50)]


@pytest.mark.parametrize(
    ("composer", "said"),
    [
        ({"importPath": "nowhere:Way"}, "its code cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ({"importPath": "way:Other"}, "its code cannot be loaded: AttributeError"),
        ({"importPath": "way:Plain"}, "Plain has no `async def run(self, inputs, steps)`"),
        ({"importPath": "way:Bad"}, "`outputs['y']` must be a datatype"),
        ({"source": "import nowhere\n" + AGAIN["composer"]["source"]}, "ModuleNotFoundError"),
    ],
)
def test_code_that_cannot_be_loaded_is_within_before_any_traffic(
    composer: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "way.py").write_text(
        "class Plain:\n    inputs = outputs = {'y': 'FP32'}\n    def run(self, inputs, steps):\n        pass\n\n"
        "class Bad:\n    inputs = {'x': 'FP32'}\n    outputs = {'y': 'float'}\n"
        "    async def run(self, inputs, steps):\n        pass\n"
    )
    spec = {"steps": STEPS, "composer": composer}
    with running_graph(chain(), spec, ready=False, composer_dir=str(tmp_path)) as running:
        running.until(lambda: "composer" in running.proxy.link.reason)
        state = plain.get(f"{running.admin_url}/v1/load").json()["graph"]
        assert state["reason"] == "InvalidGraph"
        assert said in state["message"], state


def test_a_class_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(AGAIN["composer"]["source"])
    spec = {"steps": STEPS, "composer": {"importPath": "beside:Way"}}
    with running_graph(chain(), spec, composer_dir=str(tmp_path)) as running:
        assert isinstance(running, RunningGraph)
        assert data(send(running, [60])) == [2 * value for value in row(60)]
