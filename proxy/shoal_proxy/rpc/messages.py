"""V2's messages as protobuf: one more codec over the same rules, and the pages as messages.

A request becomes the document that V2 has in JSON, with its tensors behind it as bytes, so that both are judged by the
same code and in the same words.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from google.protobuf.message import DecodeError

from shoal_proxy.codecs.base import MAX_LISTS, MAX_VALUES, Call, Decoded, Reply
from shoal_proxy.codecs.tensors import to_binary, to_wire
from shoal_proxy.codecs.v2 import decode_document
from shoal_proxy.codecs.v2_answer import chosen, output_spec
from shoal_proxy.errors import BodyTooLarge, InvalidRequest, NotFound, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.rpc.inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataResponse,
    ModelStreamInferResponse,
)
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import pack_elements

FIELDS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a tensor of a datatype has its elements, if they are not raw."""


_EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
"""Of clients of models that answer a request several times; here its only response says that it is the last."""


class GrpcV2:
    """Decode and encode ``ModelInfer``; the body of a call, and of a reply, is one message."""

    name = "grpc"

    def __init__(self, model_name: str, version: str, *, ignore_extra: bool = False) -> None:
        self._model_name = model_name
        self._version = version
        self._ignore_extra = ignore_extra

    def decode(self, call: Call, signature: ModelSignature) -> Decoded:
        """Return the request's tensors; the style tells by ``binary`` whether the answer is to be raw."""
        try:
            request = ModelInferRequest.FromString(bytes(call.body))
        except DecodeError as error:
            raise InvalidRequest(f"malformed message: {error}") from None
        self.check_model(request.model_name, request.model_version)
        _check_counts(request)
        tail: list[bytes] = []
        raw = list(request.raw_input_contents)
        if raw and len(raw) != len(request.inputs):
            raise InvalidRequest(f"{len(request.inputs)} inputs need as many raw_input_contents, not {len(raw)}")
        tensors = [_input(each, raw[at] if raw else None, tail) for at, each in enumerate(request.inputs)]
        parameters = {**_parameters(request.parameters), "binary_data_output": bool(raw)}
        parameters.pop(_EMPTY_FINAL_RESPONSE, None)
        document: dict[str, Any] = {"inputs": tensors, "parameters": parameters}
        if request.id:
            document["id"] = request.id
        if request.outputs:
            document["outputs"] = [
                {"name": each.name, "parameters": _parameters(each.parameters)} for each in request.outputs
            ]
        view = memoryview(b"".join(tail))
        return decode_document(document, view, signature, b"", ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: Decoded,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> Reply:
        """Return the outputs the caller asked for, raw if its inputs were, or if one of them has no other form."""
        style = decoded.style
        wanted = [(output_spec(name, array, signature), array) for name, array, _ in chosen(style, outputs, signature)]
        raw = style.binary or any(spec.datatype not in FIELDS for spec, _ in wanted)
        response = ModelInferResponse(model_name=self._model_name, model_version=self._version, id=style.id or "")
        for spec, array in wanted:
            wire = to_wire(spec, array)
            tensor = response.outputs.add(name=spec.name, datatype=spec.datatype, shape=wire.shape)
            if raw:
                response.raw_output_contents.append(bytes(to_binary(wire)))
            else:
                getattr(tensor.contents, FIELDS[spec.datatype]).extend(wire.ravel().tolist())
        return Reply(200, (response.SerializeToString(),))

    def error(self, error: ProxyError) -> Reply:
        """Return the sentence alone: the status says the rest."""
        return Reply(error.status, (error.message.encode(),))

    def check_model(self, name: str, version: str) -> None:
        """Raise `NotFound` for another model or version than the one served here."""
        if name != self._model_name:
            raise NotFound(f"no model named {name!r} here; this server has {self._model_name!r}")
        if version not in ("", self._version):
            raise NotFound(f"model {name!r} has no version {version!r} here, only {self._version!r}")


def metadata_message(document: Mapping[str, Any]) -> ModelMetadataResponse:
    """Return V2's model metadata as a message, which has no parameters."""
    tensors: dict[str, Any] = {
        key: [{part: each[part] for part in ("name", "datatype", "shape")} for each in document[key]]
        for key in ("inputs", "outputs")
    }
    names = {key: document[key] for key in ("name", "versions", "platform")}
    return ModelMetadataResponse(**names, **tensors)


def stream_message(reply: Reply, request: bytes) -> bytes:
    """Return a ``reply`` as the message of a stream; header lines of an error become parameters."""
    body = b"".join(map(bytes, reply.body))
    if reply.status == 200:
        response = ModelInferResponse.FromString(body)
        response.parameters["triton_final_response"].bool_param = True
        return _serialized(ModelStreamInferResponse(infer_response=response))
    response = ModelInferResponse(id=_id_of(request))
    response.parameters["status"].int64_param = reply.status
    for line in reply.lines.splitlines():
        name, _, value = line.decode("latin-1").partition(": ")
        response.parameters[name].string_param = value
    message = body.decode(errors="replace")
    return _serialized(ModelStreamInferResponse(error_message=message, infer_response=response))


def _id_of(request: bytes) -> str:
    try:
        id_: str = ModelInferRequest.FromString(request).id
    except DecodeError:
        return ""
    return id_


def _serialized(message: ModelStreamInferResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _check_counts(request: Any) -> None:
    """Refuse more than is read of a JSON request, before any of it is."""
    if len(request.inputs) > MAX_LISTS:
        raise BodyTooLarge(f"{len(request.inputs)} inputs; at most {MAX_LISTS} are read from one request")
    if len(request.outputs) > MAX_LISTS:
        raise InvalidRequest(f"{len(request.outputs)} outputs are asked for")
    typed = [each for each in request.inputs if each.datatype in FIELDS]
    values = sum(len(getattr(each.contents, FIELDS[each.datatype])) for each in typed)
    if values > MAX_VALUES:
        raise BodyTooLarge(
            f"the contents hold {values} values; at most {MAX_VALUES} are read from one request: send"
            " raw_input_contents, or fewer rows in each"
        )


def _input(tensor: Any, raw: bytes | None, tail: list[bytes]) -> dict[str, Any]:
    """Return one input as V2's JSON has it; what is bytes already goes to ``tail``."""
    parameters = _parameters(tensor.parameters)
    parameters.pop("binary_data_size", None)  # KServe's client says it here too, where it means nothing
    told = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if raw is None:
        field = FIELDS.get(tensor.datatype)
        if field is None and tensor.datatype in ("FP16", "BF16"):
            raise InvalidRequest(f"input {tensor.name!r} is {tensor.datatype}: send it in raw_input_contents")
        odd = [given.name for given, _ in tensor.contents.ListFields() if field and given.name != field]
        if odd:
            raise InvalidRequest(f"input {tensor.name!r} is {tensor.datatype} and has {odd[0]}: send {field} alone")
        values = list(getattr(tensor.contents, field)) if field else []
        if tensor.datatype != "BYTES":
            return {**told, "data": values, "parameters": parameters}
        raw = pack_elements(values)
    elif tensor.HasField("contents"):
        raise InvalidRequest(f"input {tensor.name!r} has contents beside raw_input_contents: send one of them")
    tail.append(raw)
    return {**told, "parameters": {**parameters, "binary_data_size": len(raw)}}


def _parameters(given: Mapping[str, InferParameter]) -> dict[str, Any]:
    return {name: _value(parameter) for name, parameter in given.items()}


def _value(parameter: InferParameter) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, choice) if choice else None
    if type(value) is float and not isfinite(value):
        raise InvalidRequest(f"a parameter cannot be {value}: JSON, in which the model gets it, has no such number")
    return value
