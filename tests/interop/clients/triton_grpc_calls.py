"""What the tests do with ``tritonclient.grpc``, unmodified."""

import threading
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

MODEL = "double"


def _client(target: str) -> Any:
    return triton.InferenceServerClient(target)


def _input(rows: Any) -> Any:
    array = np.array(rows, dtype=np.float32)
    tensor = triton.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def pages(target: str) -> dict[str, Any]:
    with _client(target) as client:
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready(MODEL),
            "version_ready": client.is_model_ready(MODEL, "1"),
            "server": client.get_server_metadata(as_json=True),
            "model": client.get_model_metadata(MODEL, as_json=True),
        }


def infer(target: str, rows: Any, model: str = MODEL, **options: Any) -> dict[str, Any]:
    with _client(target) as client:
        result = client.infer(model, [_input(rows)], outputs=[triton.InferRequestedOutput("y")], **options)
    head = result.get_response(as_json=True)
    return {"y": result.as_numpy("y").tolist(), "id": head.get("id"), "model": head["model_name"]}


def classify(target: str, rows: Any, count: int) -> list[Any]:
    outputs = [triton.InferRequestedOutput("y", class_count=count)]
    with _client(target) as client:
        errors = client.infer(MODEL, [_input(rows)], outputs=outputs).as_numpy("y")
    return [[each.decode() for each in row] for row in errors.tolist()]


def infer_texts(target: str, texts: list[str]) -> list[str]:
    array = np.array([text.encode() for text in texts], dtype=np.object_).reshape(-1, 1)
    tensor = triton.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    with _client(target) as client:
        answer = client.infer("shout", [tensor]).as_numpy("shout")
    return [element.decode() for element in answer.ravel().tolist()]


def infer_together(target: str, count: int) -> list[Any]:
    answers: list[Any] = [None] * count
    done = threading.Semaphore(0)

    def took(number: int, result: Any, error: Any) -> None:
        answers[number] = str(error) if error else result.as_numpy("y").tolist()
        done.release()

    with _client(target) as client:
        for number in range(count):
            client.async_infer(MODEL, [_input([[number] * 4])], lambda result, error, n=number: took(n, result, error))
        for _ in range(count):
            done.acquire(timeout=20)
    return answers


def cancelled(target: str) -> str:
    errors: list[str] = []
    done = threading.Event()

    def took(result: Any, error: Any) -> None:
        errors.append(str(error))
        done.set()

    with _client(target) as client:
        context = client.async_infer(MODEL, [_input([[1.0] * 4])], took)
        context.cancel()
        done.wait(20)
    return errors[0]


def repository(target: str) -> dict[str, Any]:
    with _client(target) as client:
        return {
            "index": client.get_model_repository_index(as_json=True),
            "all": client.get_inference_statistics(as_json=True),
            "model": client.get_inference_statistics(MODEL, "1", as_json=True),
        }


def load_model(target: str) -> None:
    with _client(target) as client:
        client.load_model("cat")


def stream(target: str, requests: list[Any]) -> list[Any]:
    """Return by request the id, and the numbers or the error."""
    answers: list[Any] = []
    done = threading.Semaphore(0)

    def took(result: Any, error: Any) -> None:
        if error:
            answers.append([None, str(error)])
        else:
            answers.append([result.get_response().id, result.as_numpy("y").tolist()])
        done.release()

    with _client(target) as client:
        client.start_stream(took)
        for number, rows in enumerate(requests):
            client.async_stream_infer(
                MODEL, [_input(rows)], request_id=f"fish-{number}", enable_empty_final_response=number % 2 == 1
            )
        for _ in requests:
            done.acquire(timeout=20)
        client.stop_stream()
    return answers


def probe(target: str, service: str) -> str:
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def described(target: str) -> dict[str, list[str]]:
    """Return each service's methods, read by reflection, without any generated code."""
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        return {name: sorted(pool.FindServiceByName(name).methods_by_name) for name in database.get_services()}
