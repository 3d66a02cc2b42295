"""Reader of untrusted `.pt2` archives that rejects records that could run code.

Records are checked when torch's own reader reads them. A separate check could see other contents: another zip reader
may resolve a repeated name differently, and the file could change between two reads.
"""

import io
import pickle
from pathlib import Path
from typing import Any, Final

import torch
from torch.export.pt2_archive import PT2ArchiveReader
from torch.export.pt2_archive._package import _load_exported_programs
from torch.utils import _pytree as pytree

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.pt2_schema import checked_key, checked_payloads, checked_program
from shoal_runtime.formats.source import UntrustedFile

PROGRAM: Final = "models/model.json"
SAMPLE_INPUTS: Final = "data/sample_inputs/model.pt"
PAYLOADS: Final = {
    "data/weights/model_weights_config.json": "weight_",
    "data/constants/model_constants_config.json": "tensor_",
}
OLD_PAYLOADS: Final = ("data/weights/model.pt", "data/constants/model.pt")
NATIVE: Final = ("data/aotinductor/", "data/executorch/", "data/mtia")
VERSION: Final = "0"
MAX_RECORD_BYTES: Final = 1024**3
"""Maximum of records other than weights: the program, the lists of its weights, sample inputs."""


class CheckedReader(PT2ArchiveReader):
    """Archive reader that checks each record before torch uses it."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        super().__init__(str(path))

    def read_bytes(self, name: str) -> bytes:
        """Read a record, and check that nothing in it can run code.

        Raises:
            UntrustedFile: the record could run code.
        """
        if name not in OLD_PAYLOADS and self.archive_file.get_record_size(name) > MAX_RECORD_BYTES:
            raise LoadError(f"{self._name}: {name} exceeds {MAX_RECORD_BYTES} bytes")
        content: bytes = super().read_bytes(name)
        try:
            if name == PROGRAM:
                return checked_program(content)
            if name in PAYLOADS:
                return checked_payloads(content, PAYLOADS[name])
            if name in (SAMPLE_INPUTS, *OLD_PAYLOADS):
                # Only tensors, and the keys of the dicts that hold them.
                value: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True) if content else ()
                for path, _ in pytree.tree_flatten_with_path(value)[0]:
                    for step in path:
                        checked_key(getattr(step, "key", 0))
            elif name not in ("archive_format", "archive_version"):
                raise ValueError(f"the record {name}")
        except ValueError as error:
            raise UntrustedFile(self._name, str(error)) from None
        except pickle.UnpicklingError:
            raise UntrustedFile(self._name, "a pickle") from None
        return content


def read_program(path: Path) -> torch.export.ExportedProgram:
    """Read the exported program of an archive.

    Raises:
        LoadError: the archive could run code, or has a format that cannot be checked.
    """
    reader = CheckedReader(path)
    names = reader.get_file_names()
    # Compiled code cannot be checked.
    if native := [name for name in names if name.startswith(NATIVE)]:
        raise UntrustedFile(path.name, f"native code, {native[0]}")
    # Other versions may have records that are not checked here.
    if reader.read_string("archive_version") != VERSION or PROGRAM not in names:
        raise LoadError(f"{path.name} is not an archive of torch.export.save, or this version of torch cannot read it")
    program: torch.export.ExportedProgram = _load_exported_programs(reader, [PROGRAM], None)["model"]
    return program
