"""TorchServe's base class of handlers: preprocess, inference and postprocess of a whole batch."""

import abc
import importlib
import os
from pathlib import Path
from typing import Any

import torch

from shoal_runtime.formats.torch_script import load_script
from ts.utils.util import list_classes_from_module, load_label_mapping


class BaseHandler(abc.ABC):  # noqa: B024 (as TorchServe's)
    """Handler that loads the archive's model (eager, TorchScript or ONNX) and runs batches of tensors."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.map_location: str | None = None
        self.initialized = False
        self.context: Any = None
        self.manifest: Any = None
        self.model_pt_path: str | None = None
        self.model_yaml_config: dict[str, Any] = {}
        self.explain = False
        self.target = 0

    def initialize(self, context: Any) -> None:
        """Load the archive's model and labels, and set `self.device`."""
        properties = context.system_properties
        gpu = properties.get("gpu_id")
        self.map_location = "cpu" if gpu is None else "cuda"
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        self.model_yaml_config = context.model_yaml_config
        self.manifest = context.manifest
        model, folder = self.manifest["model"], properties.get("model_dir")
        serialized = model.get("serializedFile")
        self.model_pt_path = os.path.join(folder, serialized) if serialized else None
        # A model file has the class of an eager model; its weights are the serialized file.
        if model.get("modelFile"):
            self.model = self._load_pickled_model(folder, model["modelFile"], self.model_pt_path)
            self.model.to(self.device).eval()
        elif self.model_pt_path is None:
            raise RuntimeError("the archive has neither a model file nor a serialized file")
        elif self.model_pt_path.endswith(".onnx"):
            self.model = self._load_onnx_model(self.model_pt_path)
        else:
            self.model = self._load_torchscript_model(self.model_pt_path)
            self.model.eval()
        self.mapping = load_label_mapping(os.path.join(folder, "index_to_name.json"))
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        # The runtime sets this variable if the user allows files that can run code.
        trusted = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD") == "0"
        return load_script(Path(model_pt_path), trusted=trusted).to(self.device)

    def _load_onnx_model(self, model_pt_path: str) -> Any:
        import onnxruntime  # noqa: PLC0415 (most archives have none)

        return onnxruntime.InferenceSession(model_pt_path, providers=onnxruntime.get_available_providers())

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError(f"the archive does not hold {model_file}, which its manifest names")
        classes = list_classes_from_module(importlib.import_module(model_file.partition(".")[0]))
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(torch.load(model_pt_path, map_location=self.device, weights_only=True))
        return model

    def preprocess(self, data: Any) -> Any:
        """Convert a batch to a tensor on the device."""
        return torch.as_tensor(data, device=self.device)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch."""
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    def postprocess(self, data: Any) -> Any:
        """Convert a batch's results to a list with one result per row."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Preprocess a batch, run the model, and postprocess the results."""
        self.context = context
        return self.postprocess(self.inference(self.preprocess(data)))

    def get_device(self) -> Any:
        """Return the device of the model."""
        return self.device
