from io import BytesIO

import pytest
import torch
from PIL import Image

from benchmarks.bare import batches, collated
from benchmarks.inputs import INPUTS, PICTURES


def test_pictures_are_files_as_a_camera_makes_them() -> None:
    files = INPUTS["cat"].items()

    assert len(files) == PICTURES
    assert len(set(files)) > PICTURES / 2
    assert {Image.open(BytesIO(file)).format for file in files} == {"JPEG"}


def test_sentences_are_whole_and_of_different_lengths() -> None:
    words = [len(sentence.split()) for sentence in INPUTS["embed"].items()]

    assert len(words) > 40
    assert min(words) >= 3
    assert max(words) > 50


def test_batches_go_round() -> None:
    endless = batches([1, 2, 3], 2)

    assert [next(endless) for _ in range(3)] == [[1, 2], [3, 1], [2, 3]]


def test_token_rows_are_padded_to_the_longest_and_masked() -> None:
    rows = [{"input_ids": torch.tensor(tokens).numpy()} for tokens in ([5, 6], [7, 8, 9])]

    batch = collated(rows)

    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("model", INPUTS)
def test_each_input_becomes_a_body(model: str) -> None:
    inputs = INPUTS[model]

    assert all(inputs.encode(item) for item in inputs.items())
