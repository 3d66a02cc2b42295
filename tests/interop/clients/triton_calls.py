"""What the tests do with ``tritonclient.http``, unmodified."""

from importlib.metadata import version
from typing import Any

import numpy as np
import tritonclient.http as triton

MODEL = "double"


def _client(url: str, **options: Any) -> Any:
    return triton.InferenceServerClient(url.removeprefix("http://"), **options)


def _input(rows: Any, *, binary: bool = True) -> Any:
    array = np.array(rows, dtype=np.float32)
    tensor = triton.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def client_version() -> str:
    return version("tritonclient")


def pages(url: str, model: str = MODEL) -> dict[str, Any]:
    with _client(url) as client:
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready(model),
            "version_ready": client.is_model_ready(model, "1"),
            "server": client.get_server_metadata(),
            "model": client.get_model_metadata(model),
        }


def model_ready(url: str, model: str) -> bool:
    with _client(url) as client:
        return bool(client.is_model_ready(model))


def model_config(url: str) -> Any:
    with _client(url) as client:
        return client.get_model_config(MODEL)


def repository(url: str) -> dict[str, Any]:
    with _client(url) as client:
        return {
            "index": client.get_model_repository_index(),
            "all": client.get_inference_statistics(),
            "model": client.get_inference_statistics(MODEL),
            "version": client.get_inference_statistics(MODEL, "1"),
        }


def load_model(url: str) -> None:
    with _client(url) as client:
        client.load_model("cat")


def infer(
    url: str, rows: Any, *, sent: str = "binary", got: str = "default", model: str = MODEL, **options: Any
) -> Any:
    outputs = None if got == "default" else [triton.InferRequestedOutput("y", binary_data=got == "binary")]
    with _client(url) as client:
        result = client.infer(model, [_input(rows, binary=sent == "binary")], outputs=outputs, **options)
    return {"y": result.as_numpy("y").tolist(), "dtype": str(result.as_numpy("y").dtype), "head": result.get_response()}


def classify(url: str, rows: Any, count: int, *, binary: bool) -> list[Any]:
    outputs = [triton.InferRequestedOutput("y", binary_data=binary, class_count=count)]
    with _client(url) as client:
        values = client.infer(MODEL, [_input(rows)], outputs=outputs).as_numpy("y")
    return [[each.decode() if isinstance(each, bytes) else each for each in row] for row in values.tolist()]


def infer_twice(url: str, rows: Any) -> list[Any]:
    with _client(url) as client:
        return [client.infer(MODEL, [_input(rows)]).as_numpy("y").tolist() for _ in range(2)]


def infer_texts(url: str, texts: list[str], *, sent: str, got: str) -> list[str]:
    array = np.array([text.encode() for text in texts], dtype=np.object_).reshape(-1, 1)
    tensor = triton.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array, binary_data=sent == "binary")
    output = triton.InferRequestedOutput("shout", binary_data=got == "binary")
    with _client(url) as client:
        answer = client.infer("shout", [tensor], outputs=[output]).as_numpy("shout")
    return [element.decode() if isinstance(element, bytes) else element for element in answer.ravel().tolist()]


def infer_together(url: str, count: int) -> list[Any]:
    with _client(url, concurrency=count) as client:
        pending = [client.async_infer(MODEL, [_input([[number] * 4])]) for number in range(count)]
        return [one.get_result().as_numpy("y").tolist() for one in pending]
