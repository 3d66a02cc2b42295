"""Requests through all doors of a model, several at a time, so that rows of different requests share batches."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import grpc
import numpy as np

import shoal
from shoal_proxy.rpc import inference_pb2 as messages
from tests.oracle.answers import Answer, by_columns, decoded, read
from tests.oracle.asking import Request, Twist, made, shuffled
from tests.oracle.cases import Case, Form
from tests.oracle.doors import BY_PLACE, CLAIMS, HTTP, Door, Impossible, Message, objects, tensors
from tests.oracle.frames import Rng
from tests.oracle.judging import Tally, Verdict, judge

CALLERS = 12
TIMEOUT_S = 30.0
CODES: Mapping[Any, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.OUT_OF_RANGE: 400,
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class Asker:
    """The clients of one model."""

    def __init__(self, case: Case, session: aiohttp.ClientSession, channel: Any, client: shoal.Client) -> None:
        self._case = case
        self._session = session
        self._client = client
        self._infer = channel and channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )

    async def http(self, message: Message) -> Answer:
        """Send an HTTP request."""
        url = self._case.served.url + message.path
        async with self._session.post(url, data=message.body, headers=message.headers) as response:
            return read(self._case, response.status, response.headers, await response.read())

    async def grpc(self, request: Request, rng: Rng, *, apart: bool) -> Answer:
        """Call over gRPC, with raw or typed contents."""
        call = messages.ModelInferRequest(model_name=self._case.served.model)
        given = tensors(self._case, request, apart=apart)
        raw = rng.random() < 0.5 or any(tensor.datatype not in CONTENTS for tensor in given)
        for tensor in given:
            item = call.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if raw:
                call.raw_input_contents.append(tensor.data)
            else:
                values = decoded_elements(tensor.datatype, tensor.data)
                getattr(item.contents, CONTENTS[tensor.datatype]).extend(values)
        try:
            answer = await self._infer(call, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return Answer(CODES.get(error.code(), 500), said=f"{error.code()}: {error.details()}")
        return Answer(200, _grpc_rows(answer))

    async def client(self, items: Any) -> Answer:
        """Ask with the Python client."""
        try:
            outputs = await asyncio.to_thread(self._client.predict_batch, items, timeout_s=TIMEOUT_S)
        except shoal.InvalidInput as error:
            return Answer(400, said=str(error))
        except shoal.ShoalError as error:
            return Answer(error.status or 500, said=f"{type(error).__name__}: {error}")
        except Exception as error:  # the client raises nothing else
            return Answer(599, said=f"{type(error).__name__}: {error}")
        return Answer(200, by_columns(self._case, _plain(outputs)))


def decoded_elements(datatype: str, data: bytes) -> list[Any]:
    """Return a tensor's elements as protobuf has them."""
    if datatype != "BYTES":
        found: list[Any] = decoded(datatype, data).tolist()
        return found
    elements = []
    while data:
        size = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + size])
        data = data[4 + size :]
    return elements


def _plain(outputs: Any) -> Any:
    if isinstance(outputs, dict):
        return {name: np.asarray(values).tolist() for name, values in outputs.items()}
    if isinstance(outputs, list) and outputs and isinstance(outputs[0], dict):
        return {name: [row[name] for row in outputs] for name in outputs[0]}
    return np.asarray(outputs).tolist()


def _grpc_rows(answer: Any) -> list[dict[str, Any]]:
    arrays = {}
    for number, output in enumerate(answer.outputs):
        if answer.raw_output_contents:
            array = decoded(output.datatype, answer.raw_output_contents[number])
        else:
            values = list(getattr(output.contents, CONTENTS[output.datatype]))
            array = np.array([each.decode() if isinstance(each, bytes) else each for each in values], object)
        arrays[output.name] = array.reshape(list(output.shape)).tolist()
    count = len(next(iter(arrays.values())))
    return [{name: values[row] for name, values in arrays.items()} for row in range(count)]


Ask = Callable[[Request, Rng], Any]
FRAMES = (Twist.ODD, Twist.MISSING, Twist.RENAMED)


def _doors(case: Case, asker: Asker) -> list[tuple[Door, Ask]]:
    """Return the doors that a model has, each with what asks there."""

    def over_http(door: Door) -> Ask:
        return lambda request, rng: asker.http(door.write(case, request, rng))

    def no_message(*_: Any) -> Message:
        raise AssertionError

    def beside(name: str, **options: Any) -> Door:
        return Door(name, no_message, lambda _: True, **options)

    found: list[tuple[Door, Ask]] = [(door, over_http(door)) for door in HTTP if door.there(case)]
    named, by_place = case.entry.named, case.form is not Form.APART
    if case.served.grpc and named:
        found.append((beside("grpc apart"), lambda request, rng: asker.grpc(request, rng, apart=True)))
    if case.served.grpc and by_place:
        door = beside("grpc tensor", twists=(Twist.ODD,), any_order=False)
        found.append((door, lambda request, rng: asker.grpc(request, rng, apart=False)))
    if named:
        found.append((beside("client frame", twists=FRAMES), lambda request, _: asker.client(request.table)))
        found.append((beside("client items", twists=FRAMES), lambda request, _: asker.client(objects(request))))
    if by_place:
        door = beside("client rows", twists=BY_PLACE[:1], any_order=False)
        found.append((door, lambda request, _: asker.client(_positional(case, request))))
    return found


def _positional(case: Case, request: Request) -> Any:
    rows = [[row[name] for name in request.names] for row in request.rows]
    if case.form is Form.SINGLE:
        return [row[0] for row in rows]
    try:
        return np.array([[np.nan if value is None else float(value) for value in row] for row in rows])
    except (TypeError, ValueError) as error:
        raise Impossible(str(error)) from None


async def drive(cases: Sequence[Case], requests: int, tally: Tally, rng: Rng, done: Callable[[int], object]) -> None:
    """Send so many requests to each of the models, through all of its doors in turn."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S), connector=aiohttp.TCPConnector(limit=0))
        )
        async with asyncio.TaskGroup() as group:
            for case in cases:
                channel = grpc.aio.insecure_channel(case.served.grpc) if case.served.grpc else None
                if channel is not None:
                    stack.push_async_callback(channel.close)
                client = stack.enter_context(shoal.Client(case.served.url, case.served.model))
                asker = Asker(case, session, channel, client)
                group.create_task(_drive_one(case, asker, requests, tally, rng, done))


async def _drive_one(
    case: Case, asker: Asker, requests: int, tally: Tally, rng: Rng, done: Callable[[int], object]
) -> None:
    claims = [door for door in CLAIMS if door.there(case)]
    doors = [*_doors(case, asker), *((door, _claim(case, asker, door)) for door in claims)]
    turns = iter(range(requests))

    async def caller() -> None:
        for turn in turns:
            door, ask = doors[turn % len(doors)]
            await _ask(case, door, ask, tally, rng)
            done(1)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _claim(case: Case, asker: Asker, door: Door) -> Ask:
    return lambda request, rng: asker.http(door.write(case, request, rng))


async def _ask(case: Case, door: Door, ask: Ask, tally: Tally, rng: Rng) -> None:
    request = made(case, door.twists, rng)
    if door.any_order:
        shuffled(request, rng)
    if len(request.rows) > door.rows:
        request.rows, request.truths = request.rows[: door.rows], request.truths[: door.rows]
    try:
        answer = await ask(request, rng)
    except Impossible as error:
        if request.twist is Twist.NONE:
            tally.count(case.entry.name, door.name, request, Verdict.REFUSED, f"the metadata name no place: {error}")
        return
    except Exception as error:  # a broken connection, an answer that cannot be read
        answer = Answer(599, said=f"{type(error).__name__}: {error}")
    verdict, why = judge(request, answer, ignores_extra=door.ignores_extra, claimed=door in CLAIMS)
    tally.count(case.entry.name, door.name, request, verdict, why)
