"""Versions of the activator's routing table, and problems of activators."""

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.zero.activator import ActivatorPod, TableVersion, activator_problem

CAT, DOG = (Key("default", name) for name in ("cat", "dog"))
LISTING = "kubectl get pods"


def test_a_version_of_another_table_is_invalid() -> None:
    version = TableVersion("e", 2)

    assert version.mark == "e:2"
    assert [version.read(mark) for mark in ("e:2", "f:2", "", "e:", "e:x", "e:-1")] == [2, -1, -1, -1, -1, -1]


def reported(*pods: ActivatorPod) -> str:
    return activator_problem(CAT, 20000, pods, listing=LISTING)


def test_ready_activators_have_no_problem() -> None:
    assert reported(ActivatorPod("10.0.0.1", True, 0.0), ActivatorPod("10.0.0.2", False, 0.0)) == ""
    assert reported(ActivatorPod("10.0.0.1", True, 0.0, refused={str(DOG): "Address already in use"})) == ""


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([], LISTING),
        ([ActivatorPod("10.0.0.1", False, 0.0)], "no pod of the activator is ready"),
        (
            [ActivatorPod("10.0.0.1", True, 0.0, refused={str(CAT): "in use"})],
            "10.0.0.1 cannot open this service's port 20000",
        ),
        (
            [ActivatorPod("10.0.0.1", True, 0.0), ActivatorPod("10.0.0.2", True, 0.0, silent=True)],
            "10.0.0.2 does not respond",
        ),
    ],
)
def test_problem_of_an_activator_is_reported(pods: list[ActivatorPod], words: str) -> None:
    assert words in reported(*pods)
