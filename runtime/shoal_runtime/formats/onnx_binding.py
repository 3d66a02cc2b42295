"""Batches of an ONNX session in memory of its device.

Without a binding, onnxruntime allocates memory of the device for each input of each run.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnxruntime import OrtValue

from shoal_runtime.faults import exception_message
from shoal_schema.wire.datatypes import Array

MAX_BUFFERS: Final = 64
"""Maximum of inputs that are kept on the device: one per input and batch size, for fixed lengths."""
OUT_OF_MEMORY: Final = "Failed to allocate memory"


class BoundSession:
    """Session whose inputs and outputs are bound to memory of a device. Runs one batch at a time.

    Args:
        session: session of onnxruntime without texts, which it cannot bind.
        device: onnxruntime's name of the device.
        index: number of the device.
    """

    def __init__(self, session: Any, device: str, index: int) -> None:
        self._session = session
        self._device = (device, index)
        self._buffers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def run(self, names: Sequence[str], batch: Mapping[str, Array]) -> list[Array]:
        """Run the graph on a batch; return the outputs of the given names.

        Raises:
            MemoryError: the batch does not fit into the memory of the device.
        """
        try:
            binding = self._session.io_binding()
            for name, array in batch.items():
                binding.bind_ortvalue_input(name, self._on_device(name, np.ascontiguousarray(array)))
            for name in names:
                binding.bind_output(name, *self._device)
            self._session.run_with_iobinding(binding)
            results: list[Array] = binding.copy_outputs_to_cpu()
        except Exception as error:  # onnxruntime's exceptions have no common base
            if OUT_OF_MEMORY in exception_message(error):
                raise MemoryError(exception_message(error)) from error
            raise
        return results

    def _on_device(self, name: str, array: Array) -> Any:
        """Copy an input to its buffer on the device, which later batches of the same shape reuse."""
        form = (name, array.shape, array.dtype)
        if form in self._buffers:
            self._buffers.move_to_end(form)
        else:
            self._buffers[form] = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, *self._device)
            if len(self._buffers) > MAX_BUFFERS:
                self._buffers.popitem(last=False)
        value = self._buffers[form]
        value.update_inplace(array)
        return value
