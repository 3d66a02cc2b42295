"""MLServer: FastAPI in front, its adaptive batcher, one inference process or none."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.workload import Job, load


class Model(MLModel):
    """V2 tensors in, V2 tensors out."""

    async def load(self) -> bool:
        """Load the model."""
        self._predict = load(Job.from_env().workload)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch."""
        x = NumpyCodec.decode_input(payload.inputs[0])
        y = NumpyCodec.encode_output("y", self._predict(x))
        return InferenceResponse(model_name=self.name, outputs=[y])
