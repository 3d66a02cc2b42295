"""Contexts and pictures for the examples."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import skimage.data
import torch
from PIL import Image

from shoal_runtime import Context

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def context_of() -> Callable[..., Context]:
    """Make what the runtime hands to an example's ``load``: on the CPU, with these parameters."""

    def context(name: str, **parameters: Any) -> Context:
        model_dir = EXAMPLES / name / "model"
        return Context(model_dir, torch.device("cpu"), None, 32, parameters)

    return context


@pytest.fixture(scope="session")
def cat_picture() -> Image.Image:
    """A ginger tabby."""
    return Image.fromarray(skimage.data.cat())


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """Write a picture as the bytes of a file."""

    def encode(image: Image.Image, format_: str = "JPEG", **options: Any) -> bytes:
        file = BytesIO()
        image.save(file, format_, **options)
        return file.getvalue()

    return encode
