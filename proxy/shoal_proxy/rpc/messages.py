"""Protobuf messages of V2's gRPC service, and their codec.

A request becomes V2's JSON document with its tensors as binary data, so that the same code checks both.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from google.protobuf.message import DecodeError

from shoal_proxy.codecs.base import MAX_LISTS, MAX_VALUES, DecodedRequest, HttpResponse, InferCall
from shoal_proxy.codecs.tensors import to_binary, to_wire
from shoal_proxy.codecs.v2 import decode_document
from shoal_proxy.codecs.v2_response import output_spec, select_outputs
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
"""The field with the elements of a tensor of a datatype, unless they are raw."""


_EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
"""A parameter for models with several responses per request; here the only response is marked as final."""


class GrpcV2:
    """Codec of ``ModelInfer``, whose bodies are single protobuf messages."""

    def __init__(self, model_name: str, version: str, *, ignore_extra: bool = False) -> None:
        self._model_name = model_name
        self._version = version
        self._ignore_extra = ignore_extra

    def decode(self, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode the tensors of a request.

        A request with raw inputs, which are binary, gets raw outputs.
        """
        try:
            request = ModelInferRequest.FromString(bytes(call.body))
        except DecodeError as error:
            raise InvalidRequest(f"malformed message: {error}") from None
        self.check_model(request.model_name, request.model_version)
        # The limits of JSON requests, checked before anything is decoded.
        if len(request.inputs) > MAX_LISTS:
            raise BodyTooLarge(f"the request has {len(request.inputs)} inputs; at most {MAX_LISTS} are allowed")
        if len(request.outputs) > MAX_LISTS:
            raise InvalidRequest(f"the request has {len(request.outputs)} outputs; at most {MAX_LISTS} are allowed")
        typed = [each for each in request.inputs if each.datatype in FIELDS]
        values = sum(len(getattr(each.contents, FIELDS[each.datatype])) for each in typed)
        if values > MAX_VALUES:
            raise BodyTooLarge(
                f"the contents have {values} values; at most {MAX_VALUES} are allowed in one request. Send"
                " raw_input_contents, or fewer rows"
            )
        tail: list[bytes] = []
        raw = list(request.raw_input_contents)
        if raw and len(raw) != len(request.inputs):
            raise InvalidRequest(
                f"raw_input_contents must have one element per input, {len(request.inputs)}, not {len(raw)}"
            )
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
        # The layout of V2's binary tensor extension.
        view = memoryview(b"".join(tail))
        return decode_document(document, view, signature, b"", ignore_extra=self._ignore_extra)

    def encode(
        self,
        decoded: DecodedRequest,
        outputs: Mapping[str, Array],
        lengths: Mapping[str, Sequence[int]],
        signature: ModelSignature,
    ) -> HttpResponse:
        """Encode outputs as a response message.

        The outputs are raw (binary) if the inputs were, or if a datatype has no other form.
        """
        style = decoded.style
        wanted = [
            (output_spec(name, array, signature), array) for name, array, _ in select_outputs(style, outputs, signature)
        ]
        # FP16 and BF16 have no typed field.
        raw = style.binary or any(spec.datatype not in FIELDS for spec, _ in wanted)
        response = ModelInferResponse(model_name=self._model_name, model_version=self._version, id=style.id or "")
        for spec, array in wanted:
            wire = to_wire(spec, array)
            tensor = response.outputs.add(name=spec.name, datatype=spec.datatype, shape=wire.shape)
            if raw:
                response.raw_output_contents.append(bytes(to_binary(wire)))
            else:
                getattr(tensor.contents, FIELDS[spec.datatype]).extend(wire.ravel().tolist())
        return HttpResponse(200, (response.SerializeToString(),))

    def error(self, error: ProxyError) -> HttpResponse:
        """Return the error's message as a body; the gRPC call carries the status."""
        return HttpResponse(error.status, (error.message.encode(),))

    def check_model(self, name: str, version: str) -> None:
        """Check that model name and version are those of the served model.

        Raises:
            NotFound: they are not.
        """
        if name != self._model_name:
            raise NotFound(f"unknown model {name!r}; this server has {self._model_name!r}")
        if version not in ("", self._version):
            raise NotFound(f"unknown version {version!r} of model {name!r}; this server has {self._version!r}")


def metadata_message(document: Mapping[str, Any]) -> ModelMetadataResponse:
    """Return V2's model metadata as a protobuf message."""
    tensors: dict[str, Any] = {
        key: [{part: each[part] for part in ("name", "datatype", "shape")} for each in document[key]]
        for key in ("inputs", "outputs")
    }
    names = {key: document[key] for key in ("name", "versions", "platform")}
    return ModelMetadataResponse(**names, **tensors)


def stream_message(result: HttpResponse, request: bytes) -> bytes:
    """Convert a response to a message of the stream.

    The message of an error also contains the status and the header lines.
    """
    body = b"".join(map(bytes, result.body))
    if result.status == 200:
        response = ModelInferResponse.FromString(body)
        response.parameters["triton_final_response"].bool_param = True
        return _serialized(ModelStreamInferResponse(infer_response=response))
    try:
        request_id: str = ModelInferRequest.FromString(request).id
    except DecodeError:
        request_id = ""
    response = ModelInferResponse(id=request_id)
    response.parameters["status"].int64_param = result.status
    for name, value in result.headers():
        response.parameters[name.decode()].string_param = value.decode("latin-1")
    message = body.decode(errors="replace")
    return _serialized(ModelStreamInferResponse(error_message=message, infer_response=response))


def _serialized(message: ModelStreamInferResponse) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _input(tensor: Any, raw: bytes | None, tail: list[bytes]) -> dict[str, Any]:
    """Return an input as V2's JSON object; append binary data to ``tail``."""
    parameters = _parameters(tensor.parameters)
    parameters.pop("binary_data_size", None)  # KServe's client sends it over gRPC too, where it has no meaning
    document = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if raw is None:
        field = FIELDS.get(tensor.datatype)
        if field is None and tensor.datatype in ("FP16", "BF16"):
            raise InvalidRequest(f"input {tensor.name!r} is {tensor.datatype}, which needs raw_input_contents")
        odd = [given.name for given, _ in tensor.contents.ListFields() if field and given.name != field]
        if odd:
            raise InvalidRequest(f"input {tensor.name!r} is {tensor.datatype} and must have only {field}, not {odd[0]}")
        values = list(getattr(tensor.contents, field)) if field else []
        if tensor.datatype != "BYTES":
            return {**document, "data": values, "parameters": parameters}
        raw = pack_elements(values)
    elif tensor.HasField("contents"):
        raise InvalidRequest(f"input {tensor.name!r} has both contents and raw_input_contents. Send one of them")
    tail.append(raw)
    return {**document, "parameters": {**parameters, "binary_data_size": len(raw)}}


def _parameters(given: Mapping[str, InferParameter]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, choice) if choice else None
        if type(value) is float and not isfinite(value):
            # Parameters are forwarded to the model as JSON.
            raise InvalidRequest(f"parameter {name!r} must be a finite number, not {value}")
        parameters[name] = value
    return parameters
