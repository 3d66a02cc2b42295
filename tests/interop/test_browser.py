"""A real browser, whose page of one origin calls a model of another."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.browser import CHROMIUM, Browser, browsing
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.access.test_access_end_to_end import ALICE, swap

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as running:
        yield running


def fetched(browser: Browser, model: RunningProxy) -> str:
    """Return what a script of the open page gets from ``model``, with a key: JSON needs a preflight request."""
    headers = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
    options = {"method": "POST", "headers": headers, "body": orjson.dumps(v2_body([row(1)])).decode()}
    browser.evaluate(
        f"window.result = ''; fetch('{model.url}{V2_PATH}', {orjson.dumps(options).decode()})"
        ".then(it => it.text()).then(text => { window.result = text }, error => { window.result = 'refused' }); 1"
    )
    browser.until("window.result")
    result: str = browser.evaluate("window.result")
    return result


@pytest.mark.parametrize("allowed", [True, False])
def test_a_page_of_another_origin_calls_the_model_where_it_is_allowed(
    browser: Browser, tmp_path: Path, allowed: bool
) -> None:
    swap(tmp_path, alice=ALICE)
    with running_proxy() as page:
        origins = (page.url,) if allowed else ("https://app.example.com",)
        with running_proxy(process__api_keys=str(tmp_path), proxy_cors__allowed_origins=origins) as model:
            browser.open(f"{page.url}/v2")
            result = fetched(browser, model)
            if allowed:
                assert orjson.loads(result)["outputs"][0]["data"] == [2 * value for value in row(1)]
            else:
                assert (result, model.runtime.seen) == ("refused", [])
