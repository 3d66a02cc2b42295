"""Build an ``InferenceGraph`` in Python: the inputs of steps are references to the outputs of other steps.

The result is the same document as written by hand, for ``kubectl apply`` and ``shoal serve``. Building a graph runs
no step.
"""

import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Never

from shoal_schema.decoding import decode
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.resource import API_VERSION, GRAPH_KIND
from shoal_schema.resource.graph import REQUEST, InferenceGraphSpec

Document = dict[str, Any]
_YAML_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML does not read as text."""
_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
Scalar = str | int | float | bool
_FIELDS = "The other arguments of a step are service, graph, url, each, count, when and on_error"
How = Literal["First", "Mean", "Max", "Vote", "Concat", "Stack"]
_PARENTHESES = (
    "`&` and `|` have precedence over comparisons. Write (first.score < 0.8) & (first.score > 0.2), in parentheses"
)


class Condition:
    """A condition on rows; combine conditions with ``&``, ``|`` and ``~``."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __and__(self, other: "Condition") -> "Condition":
        """Return the condition that both conditions hold."""
        return Condition(f"({self.text}) and ({other.text})")

    def __or__(self, other: "Condition") -> "Condition":
        """Return the condition that at least one of the conditions holds."""
        return Condition(f"({self.text}) or ({other.text})")

    def __invert__(self) -> "Condition":
        """Return the condition that this condition does not hold."""
        return Condition(f"not ({self.text})")

    def __bool__(self) -> bool:
        """Raise TypeError: the server evaluates a condition for each row."""
        raise TypeError(
            "a condition has no truth value in Python, because the server evaluates it. Combine conditions with "
            "&, | and ~"
        )


class Tensor:
    """A reference to a tensor of the request, or to an output of a step."""

    __hash__ = None  # type: ignore[assignment]  # `==` builds a condition

    def __init__(self, step: str, name: str) -> None:
        self.text = f"{step}.{name}"
        self.column = self.text if name.isidentifier() else f"{step}[{name!r}]"
        """The reference in an expression."""

    def _compared(self, sign: str, other: object) -> Condition:
        return Condition(f"{self.column} {sign} {_written(other)}")

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: "Tensor | Scalar") -> Condition:
        return self._compared("<", other)

    def __le__(self, other: "Tensor | Scalar") -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: "Tensor | Scalar") -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: "Tensor | Scalar") -> Condition:
        return self._compared(">=", other)

    def __and__(self, other: Never) -> Never:
        """Raise TypeError: comparisons beside ``&`` and ``|`` need parentheses.

        Python evaluates these operators before comparisons.
        """
        raise TypeError(_PARENTHESES)

    # Python evaluates `a < 1 & b` as `a < (1 & b)`, so these methods are called for missing parentheses.
    __rand__ = __or__ = __ror__ = __and__

    def isin(self, values: Iterable[Scalar]) -> Condition:
        """Return the condition that the tensor is one of ``values``."""
        return Condition(f"{self.column} in [{', '.join(map(_written, values))}]")


def _written(value: object) -> str:
    """Return a value in the syntax of expressions; numpy numbers become Python numbers."""
    if isinstance(value, Tensor):
        return value.column
    if value is None or isinstance(value, str | bool | int):
        return repr(value)
    if hasattr(value, "__index__"):
        return repr(operator.index(value))
    return repr(float(value))  # type: ignore[arg-type]  # float() raises for other types


class Step:
    """A step of a graph, or the request; its tensors are ``step.NAME``, or ``step["NAME"]`` for other names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, tensor: str) -> Tensor:
        """Return a reference to the tensor of this name."""
        if tensor.startswith("__"):
            raise AttributeError(tensor)
        return self[tensor]

    def __getitem__(self, tensor: str) -> Tensor:
        """Return a reference to the tensor of this name."""
        return Tensor(self._name, tensor)


class Graph:
    """Builder of an ``InferenceGraph`` document.

    Args:
        name: the graph's name.
        deadline_ms: time within which each response is wanted (ms).
        composer: Python file whose class runs the steps, or ``MODULE:CLASS`` in an image. Steps then declare no inputs,
            and the graph no outputs.
    """

    def __init__(self, name: str, *, deadline_ms: float | None = None, composer: Path | str | None = None) -> None:
        self.name = name
        self._composer = composer
        self.request = Step(REQUEST)
        self._deadline_ms = deadline_ms
        self._steps: list[Document] = []
        self._outputs: dict[str, list[str]] = {}
        self._combine: dict[str, str] = {}

    def step(  # noqa: PLR0913 (what a step of the document has)
        self,
        name: str,
        *,
        service: str | None = None,
        graph: str | None = None,
        url: str | None = None,
        each: Tensor | Sequence[Tensor] | None = None,
        count: Tensor | None = None,
        when: Condition | None = None,
        on_error: Literal["Fail", "Omit"] | None = None,
        inputs: Mapping[str, Tensor] | None = None,
        **more: Tensor,
    ) -> Step:
        """Add a step, and return a reference to its outputs.

        ``inputs`` and ``more`` both map inputs of the step to tensors.
        """
        tensors = {**(inputs or {}), **more}
        for key, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                what = f"a tensor, such as graph.request.{key} or step.NAME, not {tensor!r}"
                raise TypeError(f"{name}: the input {key} must be {what}. {_FIELDS}")
        if when is not None and not isinstance(when, Condition):
            raise TypeError(f"{name}: when must be a comparison of tensors, such as first.score < 0.5, not {when!r}")
        # Arguments that are None stay out of the document.
        items = [each] if isinstance(each, Tensor) else each
        given = {
            "service": service,
            "graph": graph,
            "url": url,
            "inputs": {key: tensor.text for key, tensor in tensors.items()} or None,
            "each": ", ".join(item.text for item in items) if items else None,
            "count": None if count is None else count.text,
            "when": None if when is None else when.text,
            "onError": on_error,
        }
        self._steps.append({"name": name, **{key: value for key, value in given.items() if value is not None}})
        return Step(name)

    def output(self, combine: How | None = None, **outputs: Tensor | Sequence[Tensor]) -> None:
        """Add outputs of the graph, by name.

        An output may have several tensors. Each row then gets the first tensor that the row has. With ``combine``, each
        row gets the tensors' combination instead.
        """
        if combine is not None and not isinstance(combine, str):
            raise TypeError(f"combine must be one word for all outputs of this call, such as 'Vote', not {combine!r}")
        for name, given in outputs.items():
            tensors = given if isinstance(given, Sequence) else [given]
            for each in tensors:
                if not isinstance(each, Tensor):
                    raise TypeError(f"{name} must be a tensor, such as graph.request.{name} or step.NAME, not {each!r}")
            self._outputs[name] = [each.text for each in tensors]
            if combine is not None:
                self._combine[name] = combine

    def to_dict(self) -> Document:
        """Return the graph as an ``InferenceGraph`` document.

        Raises:
            SpecError, GraphError: the graph is invalid; the message names the field.
        """
        if not re.search(NAME, self.name):
            raise GraphError("metadata.name", f"it must be {NAME_IN_WORDS}, not {self.name!r:.80}")
        spec: Document = {"steps": self._steps}
        if self._composer is not None:
            code = self._composer
            spec["composer"] = {"source": code.read_text()} if isinstance(code, Path) else {"importPath": code}
        if self._outputs:
            spec["outputs"] = self._outputs
        if self._combine:
            spec["combine"] = self._combine
        if self._deadline_ms is not None:
            spec["deadlineMilliseconds"] = self._deadline_ms
        try:
            make_plan(decode(InferenceGraphSpec, spec, "spec"), self.name)
        except GraphError as error:
            # Add the step's name to its index.
            number = re.match(r"steps\[([0-9]+)\]", error.path)
            where = f"(step {self._steps[int(number[1])]['name']!r}) " if number else ""
            raise GraphError(error.path, f"{where}{error.what}", error.fault) from None
        # Validated, as a copy that later steps do not change.
        document = {"apiVersion": API_VERSION, "kind": GRAPH_KIND, "metadata": {"name": self.name}, "spec": spec}
        return json.loads(json.dumps(document))  # type: ignore[no-any-return]  # a copy

    def to_yaml(self) -> str:
        """Return the graph as YAML; raises as `to_dict`."""
        return "\n".join(_lines(self.to_dict())) + "\n"


def _lines(value: Document, indent: str = "") -> list[str]:
    """Return a document as lines of YAML.

    Scalars and lists of scalars are written as JSON, which is valid YAML. Long texts are written as literal blocks.
    """
    lines = []
    for key, each in value.items():
        name = _json(key) if key.lower() in _YAML_WORDS or not _PLAIN.fullmatch(key) else key
        if isinstance(each, dict):
            lines += [f"{indent}{name}:", *_lines(each, f"{indent}  ")]
        elif isinstance(each, list) and each and isinstance(each[0], dict):
            # The first key of an item follows its dash.
            lines.append(f"{indent}{name}:")
            for item in each:
                first, *rest = _lines(item, f"{indent}  ")
                lines += [f"{indent}- {first.lstrip()}", *rest]
        elif isinstance(each, str) and _is_block(each):
            # A literal block, which keeps source code readable.
            lines += [f"{indent}{name}: |", *(f"{indent}  {line}".rstrip() for line in each.splitlines())]
        else:
            lines.append(f"{indent}{name}: {_json(each)}")
    return lines


def _json(value: object) -> str:
    """Return JSON that YAML parses to the same value; YAML has no surrogate pairs."""

    def whole(pair: re.Match[str]) -> str:
        return f"\\U{ord(json.loads(chr(34) + pair[0] + chr(34))):08x}"

    return _PAIR.sub(whole, json.dumps(value))


def _is_block(text: str) -> bool:
    """Return whether YAML restores a text unchanged from a literal block."""
    *lines, end = text.split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return bool(lines) and not end and plain and lines[-1] != "" and lines[0][:1] not in ("", " ")
