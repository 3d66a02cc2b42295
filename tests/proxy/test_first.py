import httpx
import numpy as np
from tests.fakes import running_proxy


def test_a_v2_json_request_is_answered_with_its_own_row() -> None:
    with running_proxy() as running, httpx.Client(base_url=running.url) as client:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        answer = client.post("/v2/models/double/infer", json=body)
        print(answer.text, answer.headers)
        assert answer.status_code == 200
        print(client.get("/v2/models/double").text)
        print(client.get("/v1/models/nope").text)
        print(client.post("/v1/models/double:predict", json={"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]}).text)
        print(client.post("/predictions/double", json=[1, 2, 3, 4.5]).text)
        print(
            client.post(
                "/v2/models/double/infer",
                json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3]}]},
            ).text
        )
        print(httpx.get(running.admin_url + "/metrics").text[:600])
