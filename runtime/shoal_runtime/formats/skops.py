"""scikit-learn estimators as skops files, which hold no code but name the types that they are made of."""

import io
import sys
import zipfile
from importlib.abc import MetaPathFinder
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe, remedy
from shoal_runtime.formats.estimators import limit_threads, serve
from shoal_runtime.formats.source import Loaded, Source, Unreadable
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import imported
from shoal_runtime.formats.vouched import vouched
from shoal_schema.resource.model import ModelFormat as Format


def load(source: Source) -> Loaded:
    """Load the estimator, of types that skops or Shoal vouches for or the settings trust; the file has no say in that.

    Raises:
        LoadError: it is broken, holds types that nobody trusts or a tree that leads out of its arrays, or skops is not
            installed.
    """
    path = model_file(source, Format.SKOPS)
    skops = _skops()
    from shoal_runtime.formats.trees import bind_trees  # noqa: PLC0415 (scikit-learn comes without torch now)

    limit_threads(source.context.threads)
    try:
        # Read once: what is judged is what is loaded.
        data = path.read_bytes()
        estimator = skops.loads(data, trusted=_trusted(skops, data, source, path.name))
        bind_trees(estimator)
    except LoadError:
        raise
    except HANDLER_FAULTS as error:
        why, lacking = describe(error), remedy(error).removeprefix(": ")
        raise Unreadable(path.name, "skops file", why, *([lacking] if lacking else ())) from None
    return serve(estimator, source, path)


def _trusted(skops: Any, data: bytes, source: Source, name: str) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        trusted = vouched(archive.read("schema.json")) | set(source.trusted_types)
    if kinds := sorted(set(skops.get_untrusted_types(data=data)) - trusted):
        wanted = ",".join(dict.fromkeys((*source.trusted_types, *kinds)))
        raise LoadError(
            f"{name} holds types that nobody has vouched for: {', '.join(kinds)}: set"
            f" SHOAL_MODEL_TRUSTED_TYPES={wanted} (model.trustedTypes) if you trust the file"
        )
    return sorted(trusted)


class _NoTorch(MetaPathFinder):
    """Lets nobody import torch who has not."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("torch is not needed here", name=fullname)


def _skops() -> Any:
    """Import skops: it imports all of scikit-learn, whose adapters would import torch, hundreds of megabytes."""
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        return imported("skops.io", "sklearn")
    finally:
        sys.meta_path.remove(finder)
