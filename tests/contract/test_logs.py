"""Every process writes one log format, or the other; who reads a line understands both."""

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal_operator.settings
import shoal_proxy.activator.process
import shoal_proxy.settings
import shoal_runtime.settings
import shoal_schema.process.logs
from shoal.serving.supervision import CANNOT_LOAD, Exit, cause, exit_message, is_exit_line
from shoal_operator.children.pods import find_problem
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.log_lines import Line, as_json, fields_of, read

ROOT = Path(__file__).parents[2]
FORMS = ("text", "json")
RUNTIME = "shoal_runtime.serving"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in shoal_schema.process.logs.QUIET}
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


def written(capsys: pytest.CaptureFixture[str]) -> str:
    line = capsys.readouterr().err
    assert line.endswith("\n")
    return line[:-1]


def test_a_line_is_time_level_logger_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    shoal_schema.process.logs.configure("WARNING")

    logging.getLogger("shoal.proxy").info("event=unimportant")
    logging.getLogger("shoal.proxy").warning("event=late rows=%d", 3)

    line = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING shoal\.proxy event=late rows=3\n", line)


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        ("event=a message=this port is open", (), 'event=a message="this port is open"'),
        ("event=a why=%s rows=%d", ("too late", 3), 'event=a why="too late" rows=3'),
        ("event=a why=%s", ('he said "no"',), 'event=a why="he said \\"no\\""'),
        ("event=a why=%s", ('"quoted before"',), 'event=a why="quoted before"'),
        ("event=a why=%r", ("too late",), "event=a why='too late'"),
        ("event=a error=%s; %s", ("no", "retried"), 'event=a error="no; retried"'),
        ("event=a revision=%s rows=%d", ("", 3), "event=a rows=3"),
        ("event=a share=%d%%", (5,), "event=a share=5%"),
        ("event=a share=5%%", (), "event=a share=5%%"),
        (
            "event=a message=%s%s",
            ("it failed", "\nTraceback\n  x = 1"),
            'event=a message="it failed"\nTraceback\n  x = 1',
        ),
        ("event=a traceback=\n%s", ("Traceback",), "event=a\nTraceback"),
        ("the model cannot be loaded: %s", ("no file",), "the model cannot be loaded: no file"),
        ("event=a rows=%d", ("wrong", 3), "event=a rows=%d"),
    ],
)
def test_in_text_values_of_several_words_are_quoted(
    template: str, arguments: tuple[object, ...], expected: str
) -> None:
    record = logging.makeLogRecord({"name": "l", "levelname": "INFO", "msg": template})
    record.message, record.args, record.asctime = template, arguments, "t"
    if "event" not in template:
        record.message = record.getMessage()

    line = shoal_schema.process.logs.TextFormatter().formatMessage(record)

    assert line.partition(" INFO l ")[2] == expected


def test_in_json_a_line_is_an_object_of_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    shoal_schema.process.logs.configure("WARNING", "json")

    logging.getLogger("shoal.proxy").info("event=unimportant")
    logging.getLogger("shoal.proxy").warning("event=late rows=%d why=%r", 3, "all too late")

    said = json.loads(written(capsys))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said.pop("time"))
    assert said == {"level": "WARNING", "logger": "shoal.proxy", "event": "late", "rows": 3, "why": "all too late"}


def test_in_json_a_traceback_is_one_field(capsys: pytest.CaptureFixture[str]) -> None:
    shoal_schema.process.logs.configure(form="json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("shoal").exception("event=failed rows=%d", 1)

    said = json.loads(written(capsys))
    assert (said["event"], said["rows"], said["error"]) == ("failed", 1, "ValueError: two\nlines")
    assert said["traceback"].startswith("Traceback")
    assert said["traceback"].endswith("ValueError: two\nlines")


ANYTHING = st.one_of(
    st.text(st.characters(exclude_categories=[])), st.binary(), st.floats(), st.integers(), st.booleans(), st.none()
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_whatever_is_reported_is_one_line_of_json_with_no_field_more(first: Any, second: Any, rest: Any) -> None:
    fields = fields_of("event=message_text one=%r two=%s error=%s", (first, second, rest))
    line = as_json("t", "INFO", "l", fields)

    assert list(json.loads(line, parse_constant=pytest.fail)) == [
        "time",
        "level",
        "logger",
        "event",
        "one",
        "two",
        "error",
    ]
    assert line.isascii()
    assert len(line.splitlines()) == 1
    json.dumps(json.loads(line), ensure_ascii=False).encode()  # no unpaired surrogate


@given(st.text(), st.lists(ANYTHING))
def test_any_template_is_logged(template: str, arguments: list[Any]) -> None:
    line = as_json("t", "INFO", "l", fields_of(template, tuple(arguments)))

    assert len(line.splitlines()) == 1
    assert json.loads(line)["level"] == "INFO"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("template", "arguments", "fields"),
    [
        ("event=ready", (), {"event": "ready"}),
        ("event=%s rows=%d s=%.1f", ("late", 3, 0.25), {"event": "late", "rows": 3, "s": 0.2}),
        ("event=a id=%s", ("12",), {"event": "a", "id": "12"}),
        ("event=a id=%s", ('"1 2"',), {"event": "a", "id": "1 2"}),
        ("event=a rows=1 off=100%", (), {"event": "a", "rows": 1, "off": "100%"}),
        ("event=a share=%d%% of=%s", (5, "all of it=b"), {"event": "a", "share": "5%", "of": "all of it=b"}),
        ("event=a a=1 a=2", (), {"message": "event=a a=1 a=2"}),
        ("event=a level=%s", ("b",), {"message": "event=a level=b"}),
        ("event=a was not in form", (), {"message": "event=a was not in form"}),
        ("event=a rows=%d", ("x",), {"message": "'event=a rows=%d' cannot be formatted: TypeError"}),
        ("%s", (Unprintable(),), {"message": "'%s' cannot be formatted: RuntimeError"}),
        ("event=a b=%s", (Unprintable(),), {"message": "'event=a b=%s' cannot be formatted: RuntimeError"}),
        ("%(a)s", {"a": 1}, {"message": "1"}),
        ("event=a n=%d", (1 << 64,), {"event": "a", "n": 1 << 64}),
        ("event=a n=%s", (True,), {"event": "a", "n": True}),
    ],
)
def test_fields_are_delimited_in_the_template(template: str, arguments: Any, fields: dict[str, Any]) -> None:
    assert fields_of(template, arguments) == fields


@pytest.mark.parametrize("number", [1 << 64, 1 << 99_999, float("inf")], ids=["long", "longer", "infinite"])
def test_numbers_that_json_parsers_reject_are_texts(number: float) -> None:
    said = json.loads(as_json("t", "INFO", "l", {"n": number}))
    assert isinstance(said["n"], str)


def test_every_line_of_shoal_has_its_free_text_last() -> None:
    faults = [f"{where}: {fault}" for where, template in templates() for fault in faults_of(template)]
    assert not faults, "\n".join(faults)


def templates() -> Iterator[tuple[str, str]]:
    """Yield what is logged as a literal, and where."""
    found = False
    for folder in ("operator", "proxy", "runtime", "schema"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match("event=.", node.value):
                    found = True
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
    assert found


def faults_of(template: str) -> Iterator[str]:
    *first, last = re.split(r" (?=[^ =]+=)", template)
    for each in first:
        if not re.fullmatch(r"[a-z][a-z0-9_-]*=[^\s=]+", each):
            yield f"{each!r} is no field"
    if not re.fullmatch(r"[a-z][a-z0-9_-]*=(\n%s|\S.*)", last) or (not first and " " in last):
        yield f"{last!r} has no name"


# Those who read lines.


@pytest.mark.parametrize("form", FORMS)
def test_the_line_that_states_the_reason_a_process_ends_is_parsed_by_the_command(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    shoal_schema.process.logs.configure(form=form)

    logging.getLogger(RUNTIME).critical("the model cannot be loaded: %s", 'why "so"')

    line = written(capsys)
    assert is_exit_line(line.encode())
    message_text = exit_message(Exit("runtime", CANNOT_LOAD, cause(f"{line}\n"), served=False))
    assert message_text == 'the model cannot be loaded: why "so"'


@pytest.mark.parametrize("form", FORMS)
def test_the_line_that_states_the_reason_a_container_ended_is_parsed_by_the_operator(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    shoal_schema.process.logs.configure(form=form)

    logging.getLogger(RUNTIME).info("event=model_ready name=%s", "cat")
    logging.getLogger(RUNTIME).critical("the model cannot be loaded: %s", "no such file")

    ended = {"exitCode": 3, "message": capsys.readouterr().err}
    status = {"name": "runtime", "state": {"terminated": ended}}
    problem = find_problem([{"metadata": {}, "status": {"containerStatuses": [status]}}])
    assert problem is not None
    assert problem.message == "the runtime could not load the model (exit code 3): no such file"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_no_other_line_is_a_last_one(capsys: pytest.CaptureFixture[str], form: str, level: str) -> None:
    shoal_schema.process.logs.configure(form=form)

    logging.getLogger(RUNTIME).log(
        logging.getLevelName(level), "event=message_text path=%r CRITICAL", "/a\nshoal-proxy: b"
    )

    line = written(capsys)
    assert not is_exit_line(line.encode())
    said = read(line)
    assert said is not None
    assert said.level == level
    assert cause(line) == (line if level == "ERROR" else "")


@pytest.mark.parametrize("form", FORMS)
def test_what_a_line_states_is_the_same_in_both_forms(capsys: pytest.CaptureFixture[str], form: str) -> None:
    shoal_schema.process.logs.configure(form=form)

    logging.getLogger(RUNTIME).warning("event=late rows=%d what=%s", 3, "odd")

    assert read(written(capsys)) == Line("WARNING", "event=late rows=3 what=odd")


@pytest.mark.parametrize("line", ["{", "{}", "[1]", '{"level": "ERROR"}', '{"time": 1, "level": 2, "logger": 3}', "no"])
def test_what_others_write_is_no_line_of_its_own(line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize("form", FORMS)
def test_the_final_line_of_a_command_is_written_in_the_form_of_the_log(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    shoal_schema.process.logs.configure(form=form)

    shoal_schema.process.logs.log_exit_reason("shoal-proxy", "no such port")

    line = written(capsys)
    assert read(line) == Line("CRITICAL", "no such port")
    assert (line == "shoal-proxy: no such port") == (form == "text")


def run(option: str, what: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, option, what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["shoal_proxy", "shoal_proxy.activator", "shoal_operator", "shoal_runtime"])
def test_invalid_settings_end_the_process_with_one_object(module: str) -> None:
    environment = {"SHOAL_LOG_FORMAT": "JSON", "SHOAL_LOG_LEVEL": "loud", "PYTHONPATH": ":".join(sys.path)}
    ended = run("-m", module, environment)

    assert ended.returncode == 2
    said = json.loads(ended.stderr)
    assert said["level"] == "CRITICAL"
    assert "SHOAL_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR, not 'loud'" in said["message"]


def test_an_exception_that_ends_a_process_is_one_object() -> None:
    code = 'from shoal_schema.process.logs import configure; configure(form="json"); raise ValueError("two\\nlines")'
    ended = run("-c", code, {"PYTHONPATH": ":".join(sys.path)})

    assert json.loads(ended.stderr)["traceback"].endswith("ValueError: two\nlines")
    assert exit_message(Exit("proxy", 1, cause(ended.stderr), served=True)).endswith("status 1: ValueError: two\nlines")


# The settings.


READERS: dict[Any, dict[str, str]] = {
    shoal_proxy.settings.Settings: {},
    shoal_proxy.activator.process.Settings: {},
    shoal_runtime.settings.Settings: {"SHOAL_MODEL_URI": "/models/cat"},
    shoal_operator.settings.Settings: {},
}


@pytest.mark.parametrize("text", ["debug", "INFO", "Warning", "error"])
def test_levels_are_accepted_in_any_case(text: str) -> None:
    for settings, needed in READERS.items():
        assert settings.from_env({**needed, "SHOAL_LOG_LEVEL": text}).logging.level == text.upper()


@pytest.mark.parametrize("text", ["", "text", "JSON"])
def test_every_process_has_both_forms(text: str) -> None:
    for settings, needed in READERS.items():
        assert settings.from_env({**needed, "SHOAL_LOG_FORMAT": text}).logging.form == (text.lower() or "text")


def test_an_invalid_level_is_rejected() -> None:
    for settings, needed in READERS.items():
        with pytest.raises(SettingsError, match="SHOAL_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR, not 'loud'"):
            settings.from_env({**needed, "SHOAL_LOG_LEVEL": "loud"})


def test_an_invalid_form_is_rejected() -> None:
    for settings, needed in READERS.items():
        with pytest.raises(SettingsError, match="SHOAL_LOG_FORMAT must be text, json, not 'xml'"):
            settings.from_env({**needed, "SHOAL_LOG_FORMAT": "xml"})
