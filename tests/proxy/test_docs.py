"""``GET /docs`` and ``/openapi.json``: the real signature, and a page to try it in a browser."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from shoal_proxy.model.signature import parse_metadata
from shoal_proxy.routes.docs import HEADERS, PAGE
from shoal_proxy.routes.openapi import openapi, sample
from tests import plain
from tests.browser import CHROMIUM, Browser, browsing
from tests.fakes import Array, FakeRuntime, running_proxy, tensor

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")

EVERYTHING = [
    tensor("x", "FP32", [-1, 4]),
    tensor("ids", "INT64", [-1, -1], pad_axis=1, pad_mask="mask"),
    tensor("mask", "BOOL", [-1, -1]),
    tensor("small", "UINT8", [2, -1], batch_dim=1),
    tensor("text", "BYTES", [-1], content_type="text/plain"),
    tensor("any", "BYTES", [-1], content_type="application/json", optional=True),
]
HOSTILE = "</script><img src=x onerror=alert(1)>\"'`${1}"


def document(inputs: list[Any], outputs: list[Any] | None = None) -> Any:
    outputs = outputs or [tensor("y", "FP32", [-1, 4])]
    signature = parse_metadata({"name": "m", "versions": ["1"], "inputs": inputs, "outputs": outputs})
    # As it travels.
    return json.loads(json.dumps(openapi(signature, name="m", version="1")))


def validator(described: Any, name: str) -> Draft202012Validator:
    """Return what judges values by one schema of the document."""
    registry: Registry[Any] = Registry().with_resource("urn:api", DRAFT202012.create_resource(described))
    return Draft202012Validator({"$ref": f"urn:api#/components/schemas/{name}"}, registry=registry)


def test_a_row_is_what_the_model_accepts_and_nothing_else() -> None:
    row = validator(document(EVERYTHING), "Row")
    good = {"x": [0.5, 1, 2, 3], "ids": [1, 2, 3], "small": [7, 255], "text": "a"}

    assert row.is_valid(good)
    assert row.is_valid({**good, "any": {"deep": [None]}, "mask": [True, False, True]})
    for wrong in ({"x": [1, 2, 3]}, {"ids": [1.5]}, {"small": [7, 256]}, {"text": 1}, {"unknown": 1}, {"x": None}):
        assert not row.is_valid({**good, **wrong}), wrong
    assert not row.is_valid({key: good[key] for key in ("x", "ids", "small")})


def test_the_only_input_is_the_row_itself() -> None:
    row = validator(document([tensor("image", "BYTES", [-1], content_type="image/jpeg,image/png")]), "Row")

    assert row.is_valid({"b64": "AAAA"})
    assert not row.is_valid({"image": "AAAA"})


def test_a_row_may_be_named_where_the_other_inputs_are_optional() -> None:
    row = validator(document([EVERYTHING[0], EVERYTHING[5]]), "Row")

    assert row.is_valid([1, 2, 3, 4])
    assert row.is_valid({"x": [1, 2, 3, 4], "any": 1})


COLUMNS = tensor("input-0", "FP64", [-1, 3], columns='["a", "b", "c"]', nullable=True)


def test_a_row_of_named_columns_is_an_object_or_a_list() -> None:
    described = document([COLUMNS])
    row = validator(described, "Row")

    for good in ({"a": 1, "b": None, "c": 0.5}, [1, 2, None]):
        assert row.is_valid(good)
    for wrong in ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3, "d": 4}, [1, 2], {"a": 1, "b": 2, "c": "3"}):
        assert not row.is_valid(wrong), wrong
    first = described["components"]["schemas"]["Row"]["oneOf"][0]
    assert first["examples"] == [{"a": 0.5, "b": 0.5, "c": 0.5}]
    assert described["x-shoal-inputs"][0]["columns"] == ["a", "b", "c"]


def test_columns_stand_beside_other_inputs() -> None:
    row = validator(document([COLUMNS, tensor("note", "BYTES", [-1], optional=True)]), "Row")

    assert row.is_valid({"a": 1, "b": 2, "c": 3, "note": "x"})
    assert row.is_valid({"input-0": [1, 2, 3], "note": "x"})


@pytest.mark.parametrize(
    ("parameters", "good", "wrong"),
    [
        ({"logical_type": "datetime"}, ["2024-01-31T12:00:00"], [None, 7, 1.5]),
        ({"logical_type": "datetime", "unit": "ms", "nullable": True}, ["2024-01-31T12:00:00", None, 7], [1.5, True]),
        ({"nullable": True}, ["text", None], [7]),
    ],
)
def test_nulls_and_dates_are_described(parameters: dict[str, Any], good: list[Any], wrong: list[Any]) -> None:
    described = document([tensor("x", "BYTES", [-1], content_type="text/plain", **parameters)])
    row = validator(described, "Row")

    assert all(row.is_valid(value) for value in [*good, described["components"]["schemas"]["Row"]["examples"][0]])
    assert not any(row.is_valid(value) for value in wrong)
    assert ("date-time" in json.dumps(described)) == ("logical_type" in parameters)


def test_a_response_may_hold_null_for_what_json_has_no_number_for() -> None:
    answer = validator(document(EVERYTHING, [tensor("y", "FP32", [-1]), tensor("label", "BYTES", [-1])]), "Answer")

    assert answer.is_valid({"y": None, "label": "cat"})
    assert not answer.is_valid({"y": "cat", "label": "cat"})


def test_bodies_that_are_one_row_are_listed_by_media_type() -> None:
    described = document([tensor("image", "BYTES", [-1], content_type="image/jpeg,image/png")])

    for path in ("/v1/models/m:predict", "/v2/models/m/infer", "/predictions/m"):
        content = described["paths"][path]["post"]["requestBody"]["content"]
        assert list(content) == ["application/json", "image/jpeg", "image/png"]


def test_every_reference_of_the_document_leads_somewhere() -> None:
    described = document(EVERYTHING)
    references = json.dumps(described).split('"$ref": "')[1:]

    for reference in references:
        place = described
        for part in reference.partition('"')[0].removeprefix("#/").split("/"):
            place = place[part]
    assert len(references) > 10


@pytest.mark.parametrize("inputs", [EVERYTHING, EVERYTHING[:1], EVERYTHING[4:5], EVERYTHING[3:4]])
def test_a_sample_is_a_row_of_the_schema(inputs: list[Any]) -> None:
    described = document(inputs)
    signature = parse_metadata({"name": "m", "inputs": inputs, "outputs": [tensor("y", "FP32", [-1, 4])]})
    values = {name: sample(spec, signature) for name, spec in signature.inputs.items()}

    validator(described, "Row").validate(values if len(values) > 1 else next(iter(values.values())))


def test_a_model_s_own_example_is_the_one_that_is_shown() -> None:
    text = tensor("text", "BYTES", [-1], content_type="text/plain", example="a <mask> fish")
    described = document([text])

    assert described["components"]["schemas"]["Row"]["examples"] == ["a <mask> fish"]
    assert described["x-shoal-inputs"][0]["element"] == "a <mask> fish"


def test_a_row_of_any_size_is_described_and_only_a_small_one_written_out() -> None:
    large = tensor("x", "FP32", [-1, 1 << 40, 1 << 40])
    described = document([large, tensor("any", "BYTES", [-1, 1 << 40], content_type="application/json")])

    assert "examples" not in json.dumps(described["components"]["schemas"]["Row"]["properties"]["x"])
    assert described["x-shoal-inputs"][0]["shape"] == [1 << 40, 1 << 40]


def test_what_the_document_shows_as_an_example_gets_a_response() -> None:
    with running_proxy(proxy__docs=True) as running:
        described = plain.get(f"{running.url}/openapi.json").json()
        [row] = described["components"]["schemas"]["Row"]["examples"]
        v2 = described["paths"]["/v2/models/double/infer"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]

        for path, body in (
            ("/v1/models/double:predict", {"instances": [row]}),
            ("/predictions/double", row),
            ("/v2/models/double/infer", v2["examples"][0]),
        ):
            assert path in described["paths"]
            answer = plain.post(f"{running.url}{path}", json=body)
            assert answer.status_code == 200, answer.text
        validator(described, "Answer").validate(plain.post(f"{running.url}/predictions/double", json=row).json())


def test_there_is_no_page_unless_it_was_requested() -> None:
    with running_proxy() as running:
        assert plain.get(f"{running.url}/docs").status_code == 404
        assert plain.get(f"{running.url}/", headers={"accept": "text/html"}).json() == {"status": "alive"}
        assert plain.get(f"{running.url}/openapi.json").status_code == 404


def test_a_model_that_is_not_ready_has_a_page_and_no_document_yet() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False, proxy__docs=True) as running:
        assert plain.get(f"{running.url}/docs").status_code == 200
        answer = plain.get(f"{running.url}/openapi.json")
        assert answer.status_code == 503
        assert "error" in answer.json()


def test_the_page_sends_requests_to_no_other_server_and_runs_no_other_script() -> None:
    assert "http:" not in PAGE
    assert "https:" not in PAGE
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def hostile() -> FakeRuntime:
    """Return a model that calls its tensors what would run, were it HTML, and answers so."""

    def answer(inputs: Any) -> dict[str, Array]:
        return {HOSTILE: np.array([HOSTILE.encode()], dtype=object)}

    inputs = [tensor(HOSTILE, "FP32", [-1, 2]), tensor("__proto__", "FP32", [-1, 1])]
    return FakeRuntime(inputs=inputs, outputs=[tensor(HOSTILE, "BYTES", [-1])], model=answer)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as running:
        yield running


def send(browser: Browser) -> None:
    browser.evaluate("document.getElementById('send').click()")
    browser.until("!document.getElementById('result').hidden && !document.getElementById('send').disabled")


def shown(browser: Browser, name: str) -> str:
    text: str = browser.evaluate(f"document.getElementById('{name}').textContent")
    return text


@pytest.mark.integration
@needs_chromium
def test_a_browser_calls_a_model_of_numbers(browser: Browser) -> None:
    with running_proxy(proxy__docs=True) as running:
        browser.open(f"{running.url}/docs")
        browser.until("!document.getElementById('form').hidden")
        assert shown(browser, "name") == "double"
        assert browser.evaluate("document.getElementById('input-0').value") == "[0.5,0.5,0.5,0.5]"

        browser.evaluate("document.getElementById('input-0').value = '[1, 2, 3, 4]'")
        send(browser)
        assert json.loads(shown(browser, "answer")) == {"predictions": [[2, 4, 6, 8]]}
        assert shown(browser, "timing").startswith("200; ")
        assert re.search(r"; [\d.]+ ms in the queue; .*; alone in its batch", shown(browser, "timing"))
        assert shown(browser, "outputs") == "yFP32 [4]"
        assert "-d '{\"instances\":[[1,2,3,4]]}'" in shown(browser, "curl")

        browser.evaluate("document.getElementById('input-0').value = '[1]'")
        send(browser)
        assert "[-1, 4]" in shown(browser, "answer")
        assert shown(browser, "timing").startswith("400; ")

        browser.evaluate("document.getElementById('input-0').value = '[1'")
        send(browser)
        assert shown(browser, "answer").startswith("x: ")

        assert all(url.startswith((running.url, "about:", "data:")) for url in browser.requested())
        assert [each for each in browser.complaints() if "status of 400" not in each] == []


@pytest.mark.integration
@needs_chromium
def test_a_browser_sends_several_rows_and_copies_the_command(browser: Browser) -> None:
    with running_proxy(proxy__docs=True) as running:
        browser.open(f"{running.url}/")
        browser.until("!document.getElementById('form').hidden")
        assert browser.evaluate("location.pathname") == "/docs"
        browser.evaluate("document.getElementById('add').click()")
        browser.evaluate("document.getElementById('input-1-0').value = '[1, 2, 3, 4]'")
        send(browser)

        assert json.loads(shown(browser, "answer")) == {"predictions": [[1, 1, 1, 1], [2, 4, 6, 8]]}
        assert "in a batch of 2 rows" in shown(browser, "timing")
        browser.evaluate("document.getElementById('copy').click()")
        browser.until("document.getElementById('copy').textContent !== 'Copy'")
        assert browser.complaints() == []


def test_a_model_of_one_row_per_request_offers_no_more() -> None:
    signature = parse_metadata(
        {"name": "m", "inputs": [tensor("x", "FP32", [4])], "outputs": [tensor("y", "FP32", [4])]}
    )
    described = openapi(signature, name="m", version="1")

    assert not described["x-shoal-batches"]
    assert described["x-shoal-outputs"] == [{"name": "y", "datatype": "FP32", "media": [], "shape": [4]}]


@pytest.mark.integration
@needs_chromium
def test_a_browser_sends_a_file_as_it_is(browser: Browser, tmp_path: Path) -> None:
    def length(inputs: Any) -> dict[str, Array]:
        return {"bytes": np.array([len(each) for each in inputs["image"]], dtype=np.int64)}

    def pictures() -> FakeRuntime:
        inputs = [tensor("image", "BYTES", [-1], content_type="image/jpeg,image/png")]
        return FakeRuntime(inputs=inputs, outputs=[tensor("bytes", "INT64", [-1])], model=length)

    picture = tmp_path / "a picture's.png"
    picture.write_bytes(bytes(range(256)) * 300)
    with running_proxy(pictures, proxy__docs=True) as running:
        browser.open(f"{running.url}/docs")
        browser.until("!document.getElementById('form').hidden")
        browser.choose_file("#input-0", picture)
        browser.until("document.images.length === 1")
        assert browser.evaluate("document.images[0].src").startswith("data:image/png;base64,")
        send(browser)

        assert shown(browser, "answer") == "76800"
        assert "'Content-Type: image/png'" in shown(browser, "curl")
        assert "--data-binary @'a picture'\\''s.png'" in shown(browser, "curl")
        assert browser.complaints() == []


@pytest.mark.integration
@needs_chromium
def test_names_and_responses_of_a_model_stay_text(browser: Browser) -> None:
    with running_proxy(hostile, proxy__docs=True) as running:
        browser.open(f"{running.url}/docs")
        browser.until("!document.getElementById('form').hidden")
        send(browser)

        assert HOSTILE in browser.evaluate("document.querySelector('label').textContent")
        assert json.loads(shown(browser, "answer")) == {"predictions": [HOSTILE]}
        assert browser.evaluate("document.images.length") == 0
        assert browser.complaints() == []
        # What would have been HTML is refused by the browser as well.
        refused = "(() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } })()"
        assert browser.evaluate(refused)


@pytest.mark.integration
@needs_chromium
def test_a_media_type_that_a_shell_would_obey_is_quoted(browser: Browser, tmp_path: Path) -> None:
    def pictures() -> FakeRuntime:
        inputs = [tensor("image", "BYTES", [-1], content_type="image/x'; touch hacked; '")]
        return FakeRuntime(inputs=inputs, model=lambda _: {"y": np.zeros((1, 4), np.float32)})

    (tmp_path / "a.bin").write_bytes(b"x")
    with running_proxy(pictures, proxy__docs=True) as running:
        browser.open(f"{running.url}/docs")
        browser.until("!document.getElementById('form').hidden")
        browser.choose_file("#input-0", tmp_path / "a.bin")
        send(browser)

        words = shlex.split(shown(browser, "curl"))
        assert words[:4] == ["curl", "-H", "Content-Type: image/x'; touch hacked; '", "--data-binary"]


@pytest.mark.integration
@needs_chromium
def test_a_page_below_the_models_own_path_requests_the_same_routes(browser: Browser) -> None:
    with running_proxy(proxy__docs=True) as running:
        browser.open(f"{running.url}/v2/models/double/docs")
        browser.until("!document.getElementById('form').hidden")
        send(browser)

        assert json.loads(shown(browser, "answer")) == {"predictions": [[1, 1, 1, 1]]}
        assert f"'{running.url}/v1/models/double:predict'" in shown(browser, "curl")


@pytest.mark.integration
@needs_chromium
def test_a_page_opened_too_early_shows_the_model_when_it_is_ready(browser: Browser) -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False, proxy__docs=True) as running:
        browser.open(f"{running.url}/docs")
        browser.until("document.getElementById('state').textContent.startsWith('not ready yet: ')")
        running.runtime.ready = True
        browser.until("!document.getElementById('form').hidden")
