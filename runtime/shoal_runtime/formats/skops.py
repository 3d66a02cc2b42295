"""The skops format: scikit-learn estimators in files without code, which name the types of their objects."""

import io
import sys
import zipfile
from importlib.abc import MetaPathFinder
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.estimators import limit_threads, serve
from shoal_runtime.formats.own_code import NotInModule, import_fault, script_names
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import imported
from shoal_runtime.formats.trusted_types import trusted_types
from shoal_schema.resource.model import ModelFormat as Format


def load(source: ModelSource) -> LoadedModel:
    """Load an estimator if all its types are trusted: by skops, by Shoal or by the settings.

    Raises:
        LoadError: the file is corrupt, or holds untrusted types or a tree with invalid indices; or skops is missing.
    """
    path = model_file(source, Format.SKOPS)
    # Without torch: scikit-learn's adapters would import it, which takes hundreds of megabytes.
    finder = _NoTorch()
    # First in line, before the finders of installed packages.
    sys.meta_path.insert(0, finder)
    try:
        skops = imported("skops.io", "sklearn")
    finally:
        sys.meta_path.remove(finder)
    from shoal_runtime.formats.trees import bind_trees  # noqa: PLC0415 (after scikit-learn was imported without torch)

    limit_threads(source.context.threads)
    try:
        # Read once, so that the bytes that are checked are those that are loaded.
        data = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            trusted = trusted_types(archive.read("schema.json")) | set(source.trusted_types)
        unknown = set(skops.get_untrusted_types(data=data))
        # Also if they are trusted: this process cannot import them.
        if names := script_names(sorted(unknown)):
            raise NotInModule(path.name, names)
        if kinds := sorted(unknown - trusted):
            wanted = ",".join(dict.fromkeys((*source.trusted_types, *kinds)))
            raise LoadError(
                f"{path.name} holds types that are not trusted: {', '.join(kinds)}. Set"
                f" SHOAL_MODEL_TRUSTED_TYPES={wanted} (model.trustedTypes) if you trust the file"
            )
        estimator = skops.loads(data, trusted=sorted(trusted))
        bind_trees(estimator)
    except LoadError:
        raise
    except HANDLER_FAULTS as error:
        raise import_fault(path.name, error) or UnreadableFile(path.name, "skops file", describe(error)) from None
    return serve(estimator, source, path)


class _NoTorch(MetaPathFinder):
    """Import hook that fails imports of torch."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("torch is not needed here", name=fullname)
