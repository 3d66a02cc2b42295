"""`make mutants`: which tokens it changes, and into what."""

import tomllib

import pytest

from tests.project.mutants import CORES, EQUIVALENT, ROOT
from tests.project.tokens import Mutant, compiled, mutants_of


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants_of("a.py", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b -> a <= b"]),
        ("(a - b).reshape(1, -1)", ["a - b -> a + b", "1 -> 2"]),
        ("a is not b", ["a is not b -> a is b"]),
        ("a + b", ["a + b -> a - b"]),
        ("a += b", ["a += b -> a -= b"]),
        ("a or b", ["a or b -> a and b"]),
        ("not a", ["not a -> a"]),
        ("min(a, 3)", ["min -> max", "3 -> 4"]),
        ("x = True", ["True -> False"]),
        ("while a:\n    break", ["break -> continue"]),
    ],
)
def test_one_token_is_changed_at_a_time(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("KEPT = 20", ["20 -> 200"]),
        ("SHARE: Final = 0.9", ["0.9 -> 9.0"]),
        ("NOTHING = 0", ["0 -> 1"]),
        ("ON = True", ["True -> False"]),
        ("LOW, HIGH = -1, 5.0", ["1 -> 10", "5.0 -> 50.0"]),
        ("LIMIT = 1 << 20", ["1 -> 10", "20 -> 200"]),
        ("LONG_S = 2 * SHORT_S", ["2 * SHORT_S -> 2 / SHORT_S", "2 -> 20"]),
        ("LEAST_S = SHORT_S / 2", ["SHORT_S / 2 -> SHORT_S * 2", "2 -> 20"]),
        ("MOST = 2**31 - 1", ["2 ** 31 - 1 -> 2 ** 31 + 1", "2 -> 3", "31 -> 32", "1 -> 2"]),
        ("CODES = {503: 1}", ["503 -> 504", "1 -> 2"]),
        ("Name = Meta(max_length=63)", ["63 -> 64"]),
        ("def f(x=20): return x < 8", ["20 -> 21", "x < 8 -> x <= 8", "8 -> 9"]),
        ("class A:\n    x = 20", ["20 -> 21"]),
    ],
)
def test_constants_of_a_module_that_are_tuning_are_changed_by_a_lot(source: str, expected: list[str]) -> None:
    assert sorted(changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        "x: Literal[1]",
        "def f(x: Range[2]) -> Range[3]: ...",
        "if TYPE_CHECKING:\n    x = 1",
        "'a'",
        "f(frozen=True)",
        "x.reshape(a, -1)",
    ],
)
def test_what_no_test_can_reach_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_a_mutant_runs_with_its_one_change_and_is_named_without_its_line() -> None:
    source = "class A:\n    def f(self, x):\n        return x + 1 if x < 2 else x"
    functions = {}
    for mutant in mutants_of("a.py", source):
        scope: dict[str, type] = {}
        exec(compiled(mutant, source), scope)
        functions[mutant.name] = [scope["A"]().f(x) for x in (1, 2)]

    assert functions == {
        "a.py A.f: x + 1 -> x - 1": [0, 2],
        "a.py A.f: 1 -> 2": [3, 2],
        "a.py A.f: x < 2 -> x <= 2": [2, 3],
        "a.py A.f: 2 -> 3": [2, 3],
    }


def test_the_sources_are_what_they_were_when_nothing_is_to_be_changed() -> None:
    source = "x = [1, 2]"
    scope: dict[str, list[int]] = {}
    exec(compiled(Mutant("a.py", 99, 1, "", ""), source), scope)
    assert scope["x"] == [1, 2]


@pytest.mark.parametrize("core", CORES)
def test_each_core_and_the_tests_that_are_to_notice_its_mutants_exist(core: str) -> None:
    assert [path for path in (core, *(f"tests/{path}" for path in CORES[core])) if not (ROOT / path).exists()] == []


def test_every_mutant_that_is_excused_exists() -> None:
    excused = [each["mutant"] for each in tomllib.loads(EQUIVALENT.read_text())["equivalent"]]
    paths = {name.partition(" ")[0] for name in excused}
    names = {mutant.name for path in paths for mutant in mutants_of(path, (ROOT / path).read_text())}

    assert [name for name in excused if name not in names] == []
    assert len(set(excused)) == len(excused)
