"""A model for MLServer, run in an environment of its own: ``y = 2 x``, and it refuses negative numbers."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse


class Double(MLModel):  # type: ignore[misc]  # MLServer is not installed where types are checked
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        if (x < 0).any():
            raise InferenceError("fish cannot be negative")
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", 2 * x)])
