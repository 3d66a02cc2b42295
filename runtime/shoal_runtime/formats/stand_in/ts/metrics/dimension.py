"""TorchServe's class for the dimension of a metric."""


class Dimension:
    """Name and value of a metric's dimension."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value
