"""Compare results with the expected ones, and describe differences."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.oracle.answers import Answer
from tests.oracle.asking import Request, Twist
from tests.oracle.cases import Truth, same


class Verdict(StrEnum):
    """What an answer is."""

    RIGHT = "right"
    WRONG = "wrong"
    """200 with something else than the library gives, or for what must be refused."""
    REFUSED = "refused"
    """4xx to what must be served."""
    FAILED = "failed"
    """5xx where the library does not raise, or no answer."""


MUST_FAIL = frozenset({Twist.MISSING, Twist.RENAMED, Twist.TEXT, Twist.FLAG, Twist.NUMBER})


def judge(request: Request, answer: Answer, *, ignores_extra: bool, claimed: bool = False) -> tuple[Verdict, str]:
    """Return what an answer is, and the reason where it is not right."""
    must_fail = claimed or request.twist in MUST_FAIL or (request.twist is Twist.EXTRA and not ignores_extra)
    raises = request.twist is Twist.ODD and None in request.truths
    if answer.status >= 500 or answer.status < 200:
        return (Verdict.RIGHT, "") if raises else (Verdict.FAILED, answer.said)
    if answer.status != 200:
        free = must_fail or request.twist is Twist.ODD
        return (Verdict.RIGHT, "") if free else (Verdict.REFUSED, answer.said)
    if must_fail or raises:
        return Verdict.WRONG, f"served: {_short(answer.rows)}"
    assert answer.rows is not None
    if len(answer.rows) != len(request.truths):
        return Verdict.WRONG, f"{len(answer.rows)} rows for {len(request.truths)}"
    for row, (truth, given) in enumerate(zip(request.truths, answer.rows, strict=True)):
        if why := _differs(truth, given):
            return Verdict.WRONG, f"row {row}: {why}"
    return Verdict.RIGHT, ""


def _differs(truth: Truth, given: dict[str, Any]) -> str:
    assert truth is not None
    for name, expected in truth.items():
        if name not in given:
            return f"no output {name}, but {', '.join(given)}"
        if not same(expected, given[name]):
            return f"{name} is {_short(given[name])}, right is {_short(expected)}"
    return ""


def _short(value: Any) -> str:
    return f"{value!s:.200}"


@dataclass(slots=True)
class Finding:
    """What a door of a model does wrong, how often, and the first example."""

    verdict: Verdict
    model: str
    door: str
    twist: str
    example: str
    count: int = 0


@dataclass(slots=True)
class Tally:
    """What became of all requests."""

    requests: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    unserved: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)

    def count(self, model: str, door: str, request: Request, verdict: Verdict, why: str) -> None:
        """Count one request."""
        self.requests += 1
        self.verdicts[verdict] += 1
        self.models.add(model)
        if verdict is Verdict.RIGHT:
            return
        key = (verdict, model, door, request.twist)
        example = f"{why} | columns {request.names} rows {request.rows}"[:900]
        finding = self.findings.setdefault(key, Finding(verdict, model, door, str(request.twist), example))
        finding.count += 1

    def lines(self) -> Iterable[str]:
        """Yield the findings, the most serious first, and a summary."""
        order = [Verdict.WRONG, Verdict.FAILED, Verdict.REFUSED]
        for verdict in order:
            found = [each for each in self.findings.values() if each.verdict is verdict]
            for each in sorted(found, key=lambda each: (each.model, each.door)):
                yield f"{each.verdict.upper():8} {each.model}, {each.door}, {each.twist} ({each.count}): {each.example}"
        for model, why in self.unserved.items():
            yield f"UNSERVED {model}: {why}"
        counts = ", ".join(f"{self.verdicts[verdict]} {verdict}" for verdict in order)
        yield f"{len(self.models)} models, {self.requests} requests: {counts}; {len(self.unserved)} models not served"
