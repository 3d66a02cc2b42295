"""TorchServe archives, made by its own archiver from handlers written as its users write them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # it leaves a file of its own open
    from model_archiver.model_archiver_config import ModelArchiverConfig
    from model_archiver.model_packaging import generate_model_archive


def archived(folder: Path, name: str, files: Mapping[str, str | bytes], handler: str, **options: Any) -> Path:
    """Return the archive of these files; those that no option names are its extra files, or extra directories.

    ``options`` are the archiver's: model_file, serialized_file, config_file, requirements_file, archive_format.
    """
    source = folder / f"{name}-source"
    source.mkdir()
    for file, content in files.items():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes(content.encode() if isinstance(content, str) else content)
    named = {key: str(source / value) for key, value in options.items() if value in files}
    given = {*(value for value in options.values() if value in files), handler.partition(":")[0]}
    extra = dict.fromkeys(str(source / Path(file).parts[0]) for file in files if file not in given)
    store = folder / "store"
    store.mkdir(exist_ok=True)
    generate_model_archive(
        ModelArchiverConfig(
            **{
                "model_name": name,
                "handler": str(source / handler) if handler.partition(":")[0] in files else handler,
                "version": "1.0",
                "extra_files": ",".join(extra) or None,
                "export_path": str(store),
                **options,
                **named,
            }
        )
    )
    (made,) = store.glob(f"{name}*")
    return made


WORDS = {
    "words.py": """\
from shared import shout

calls = []


def handle(data, context):
    calls.append(data)
    if data is None:
        return None
    answers = []
    for index, row in enumerate(data):
        value = row.get("data", row.get("body"))
        if value == "boom":
            raise ValueError("boom in the batch")
        if value == "teapot":
            context.set_response_status(418, "I am a teapot", index)
        if context.get_request_header(index, "X-As") == "html":
            context.set_response_content_type(index, "text/html")
        answers.append(shout(value) if isinstance(value, str) else {"kind": type(value).__name__, "keys": sorted(row)})
    if any(row.get("body") == "short" for row in data) and len(data) > 1:
        return answers[:-1]
    return answers
""",
    "shared.py": "def shout(text):\n    return text.upper()\n",
}
"""A function with a neighbour; a text is answered in capitals."""
