"""Suffixes of the model formats, and remedies for formats that are not served."""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from shoal_schema.resource.model import ModelFormat as Format

# A suffix may belong to several formats; the loader then reads the file.
SUFFIXES: Final[Mapping[Format, tuple[str, ...]]] = {
    Format.TORCH_EXPORT: (".pt2",),
    Format.SAFETENSORS: (".safetensors",),
    Format.TORCH_SCRIPT: (".pt", ".pth", ".ts", ".torchscript"),
    Format.ONNX: (".onnx",),
    Format.SKOPS: (".skops",),
    Format.JOBLIB: (".joblib", ".pkl", ".pickle"),
    Format.XGBOOST: (".ubj", ".json", ".bst"),
    Format.LIGHTGBM: (".lgb", ".txt", ".bst"),
    Format.KERAS: (".keras",),
}
KNOWN: Final = tuple(dict.fromkeys(chain.from_iterable(SUFFIXES.values())))
_HDF5: Final = "an old Keras format: keras.saving.load_model(...).save('NAME.keras') writes the new one"
_CHECKPOINT: Final = "weights without their network: export the module with torch.export, or serve a handler"
REMEDIES: Final[Mapping[str, str]] = {
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".pb": "of TensorFlow: export it as ONNX with tf2onnx, or save the Keras model as NAME.keras",
    ".tflite": "of TensorFlow: export the original model as ONNX with tf2onnx",
    ".cbm": "of CatBoost: export it with save_model('NAME.onnx', format='onnx')",
    ".gguf": "of llama.cpp: Shoal does not serve models that generate text token by token; llama.cpp and vLLM do",
    ".ckpt": _CHECKPOINT,
}
"""Suffix of a format that is not served -> its origin and the conversion."""


def remedy(names: list[str]) -> str:
    """Return the remedy for the first file name of a known foreign format; empty if there is none."""
    found = ((name, REMEDIES[suffix]) for name in names for suffix in REMEDIES if name.lower().endswith(suffix))
    return next((f"{name} is {what}" for name, what in found), "")
