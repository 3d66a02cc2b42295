"""Which suffixes files of a format have; and what to do about files of formats that are not served."""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from shoal_schema.resource.model import ModelFormat as Format

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
_HDF5: Final = "Keras' old format: keras.saving.load_model(...).save('NAME.keras') writes the one that is served"
_CHECKPOINT: Final = "weights without their network: export the module with torch.export, or serve a handler"
REMEDIES: Final[Mapping[str, str]] = {
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".pb": "TensorFlow's: export it as ONNX with tf2onnx, or save the Keras model as NAME.keras",
    ".tflite": "TensorFlow's: export the model it was made of as ONNX with tf2onnx",
    ".cbm": "CatBoost's: save_model('NAME.onnx', format='onnx') writes what is served",
    ".gguf": "of llama.cpp, which generates text token by token: Shoal serves no such models; llama.cpp and vLLM do",
    ".ckpt": _CHECKPOINT,
}
"""What a file of another suffix is, and how it becomes one that is served."""


def remedy(names: list[str]) -> str:
    """Return what to do about the first of some files that is of a known foreign format; empty where none is."""
    found = ((name, REMEDIES[suffix]) for name in names for suffix in REMEDIES if name.lower().endswith(suffix))
    return next((f"{name} is {what}" for name, what in found), "")
