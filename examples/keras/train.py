"""Train a small network on handwritten digits and save it: ``python examples/keras/train.py``."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from sklearn.datasets import load_digits

MODEL = Path(__file__).parent / "model" / "digits.keras"


def train(epochs: int) -> keras.Model:
    """Return a network that names 8 x 8 pictures of digits, whose pixels are 0 to 16."""
    keras.utils.set_random_seed(20)
    pictures, digits = load_digits(return_X_y=True)
    model = keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax", name="probability"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(pictures.astype("float32"), digits, epochs=epochs, validation_split=0.2, verbose=2)
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5, help="to train for")
    parser.add_argument("--model", type=Path, default=MODEL, help="the file to write")
    options = parser.parse_args(arguments)
    options.model.parent.mkdir(exist_ok=True)
    train(options.epochs).save(options.model)
    print(f"written: {options.model}")


if __name__ == "__main__":
    main()
