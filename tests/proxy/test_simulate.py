import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shoal_proxy.__main__ import main as run
from shoal_proxy.commands.simulate import EXAMPLES

LATENCY = {"tables": [{"shapes": {}, "sizes": [{"rows": 1, "mean_s": 0.004, "p95_s": 0.004}]}], "overhead_s": 0.001}
TRACE = "arrived_s,rows,shape,deadline_ms\n0.1,1,,\n0.2,2,x:3,50\n"


def main(command: str, arguments: list[str]) -> int:
    return run([command, *arguments])


@contextmanager
def admin_port(answers: dict[str, str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.get(self.path)
            body = (text or "no such route").encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_random_trace_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--poisson 300 --requests 300 --latency 4ms+1ms --objective-ms 50 --max-batch-size 8 --json"

    assert main("simulate", given.split()) == 0

    study = json.loads(capsys.readouterr().out)
    assert study["outcome"]["offered"] == 300
    assert study["outcome"]["in_time"] == 300
    assert study["capacity_per_s"] <= study["best_capacity_per_s"] * 1.01


def test_a_fleet_with_a_slow_pod_and_a_dead_one_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--poisson 2500 --requests 1000 --latency 20ms+0.5ms --objective-ms 100 --replicas 4 --slow 1.5"
    given += " --balance RequestForwarding --connections 2 --pod-death 0.1 --start-seconds 0.1 --json"

    assert main("simulate", given.split()) == 0

    study = json.loads(capsys.readouterr().out)
    assert study["outcome"]["forwarded"] > 0
    assert 0 < study["outcome"]["failed"] < 200
    assert study["best_in_time"] is None, "where requests go depends on more than chance"


def test_an_unknown_balance_is_rejected_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("simulate", ["--poisson", "1", "--latency", "1ms+1ms", "--balance", "BestFit"]) == 2

    assert (
        "'Pinned', 'Random', 'LeastRows', 'PowerOfTwo', 'SoonestFinish', 'RequestForwarding'" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ("--balance RequestForwarding", "--balance: has no effect"),
        ("--connections 8 --replicas 2", "--connections: has no effect"),
        (
            "--stale-ms 9 --replicas 2 --balance Pinned",
            "--stale-ms: has no effect",
        ),
        ("--start-seconds 3", "--start-seconds: has no effect: it needs --pod-death"),
        ("--max-delay-ms 3", "--max-delay-ms: has no effect: it needs --policy Fixed"),
        ("--extrapolate", "--extrapolate: has no effect: it needs --from"),
        ("--ignore-deadlines", "--ignore-deadlines: has no effect: random arrivals have no deadlines"),
    ],
)
def test_an_option_without_what_it_belongs_to_is_rejected(
    given: str, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("simulate", ["--poisson", "1", "--latency", "1ms+1ms", *given.split()]) == 2

    assert f"Error: {needs}" in capsys.readouterr().err.splitlines()[-1]


def test_a_recorded_trace_has_as_many_requests_as_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("simulate", ["trace.csv", "--latency", "1ms+1ms", "--requests", "5"]) == 2

    assert "--requests: has no effect: a recorded trace has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ("--pod-death 500", "the pod dies after the last request"),
        ("--pod-death 0.1", "the replacement of the dead pod starts after the last request"),
        ("--pod-death 0.1 --start-seconds 0.1", ""),
    ],
)
def test_a_death_or_a_start_after_the_last_request_is_reported(
    given: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"--poisson 100 --requests 50 --latency 1ms+1ms --replicas 2 {given}"

    assert main("simulate", given.split()) == 0
    assert capsys.readouterr().err.startswith(f"shoal: {note}" if note else "")


def test_a_rule_is_accepted_in_any_case_of_letters(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--poisson 100 --requests 50 --latency 1ms+1ms --replicas 2 --balance requestforwarding --policy adaptive"

    assert main("simulate", given.split()) == 0
    assert "RequestForwarding, 4 connections a replica" in capsys.readouterr().out


def test_a_misspelt_option_is_reported_with_the_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--gamma 600,4 --latency 1ms+1ms --replicas 2 --balanced Pinned"
    assert main("simulate", given.split()) == 2

    assert "'--balance'" in capsys.readouterr().err


def test_a_terminal_sees_what_is_simulated_and_in_the_end_only_the_figures() -> None:
    given = ["simulate", "--poisson", "300", "--requests", "100", "--latency", "4ms+1ms", "--objective-ms", "50"]
    master, terminal = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as reader, os.fdopen(terminal, "wb", buffering=0) as writer:
        command = [sys.executable, "-m", "shoal_proxy", *given]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, timeout=60, check=True)
        output = reader.read(4096).decode()

    assert "simulating 100 requests" in output
    assert output.count("\n") == 0
    assert b"simulating" not in result.stdout
    assert b"capacity at 99%" in result.stdout


def test_a_recording_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({"/v1/trace?seconds=2": TRACE}) as url:
        assert main("record", ["--from", url, "--seconds", "2", "--json"]) == 0

    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [
        {"arrived_s": 0.1, "rows": 1, "shape": "", "deadline_ms": None},
        {"arrived_s": 0.2, "rows": 2, "shape": "x:3", "deadline_ms": 50},
    ]
    assert said.err == "recording for 2 s\n2 arrivals in 2 s\n"


@pytest.mark.parametrize("arrivals", ["--gamma 300,4", "--on-off 100,500,1"])
@pytest.mark.parametrize("policy", ["Adaptive", "Fixed --max-delay-ms 5", "None"])
def test_every_trace_goes_with_every_policy(arrivals: str, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{arrivals} --requests 200 --latency 4ms+1ms --objective-ms 50 --policy {policy}"

    assert main("simulate", given.split()) == 0
    assert "offered" in capsys.readouterr().out


def test_a_recorded_trace_meets_a_table_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "table.json").write_text('{"1": 0.004, "8": 0.009}')

    given = [str(tmp_path / "trace.csv"), "--latency", str(tmp_path / "table.json"), "--speed", "2", "--json"]
    assert main("simulate", given) == 0

    outcome = json.loads(capsys.readouterr().out)["outcome"]
    assert outcome["offered"] == outcome["in_time"] == 2
    assert outcome["offered_per_s"] == pytest.approx(20)


def sizes(*measured: int, most: int = 4) -> str:
    """Return what `/v1/latency` answers of a model of 4 ms a batch, of which these sizes were measured."""
    known = [
        {"rows": rows, "mean_s": 0.004, "p95_s": 0.004, "measured": rows in measured} for rows in range(1, most + 1)
    ]
    return json.dumps({"tables": [{"shapes": {}, "sizes": known}], "objective_s": 0.02, "max_batch_size": most})


def test_what_a_proxy_has_never_measured_is_not_simulated_as_fact(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--poisson", "100", "--requests", "100", "--from"]
    with admin_port({"/v1/latency": sizes(1)}) as url:
        assert main("simulate", [*given, url]) == 1
        assert f"{url} has not measured batches of more than 1 row" in capsys.readouterr().err

        assert main("simulate", [*given, url, "--max-batch-size", "1"]) == 0
        assert capsys.readouterr().err == ""

        assert main("simulate", [*given, url, "--extrapolate"]) == 0
        out, err = capsys.readouterr()
        assert "batches of more than 1 row (not measured)" in out
        assert "not measured: batches of more than 1 row" in err

        assert main("simulate", [*given, url, "--extrapolate", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["guessed"] == "batches of more than 1 row"


def test_sizes_far_apart_leave_a_gap_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({"/v1/latency": sizes(1, 8, most=8)}) as url:
        assert main("simulate", ["--poisson", "100", "--requests", "100", "--from", url]) == 1

    assert "has not measured batches between 1 and 8 rows" in capsys.readouterr().err


def test_a_shape_that_was_never_measured_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, document = tmp_path / "trace.csv", json.loads(sizes(1, 2, 4))
    trace.write_text(TRACE)
    document["tables"][0]["shapes"] = {"x": [9]}
    with admin_port({"/v1/latency": json.dumps(document)}) as url:
        assert main("simulate", [str(trace), "--from", url]) == 1

    assert "has not measured inputs of shape x:3" in capsys.readouterr().err


def served(rows_per_s: float) -> str:
    """Return what `/v1/latency` answers of a proxy that has served so much."""
    document = json.loads(sizes(1, 2, 4))
    return json.dumps({**document, "busiest": {"rows_per_s": rows_per_s, "batch_rows": 2.0}})


def test_a_load_beyond_what_was_served_is_a_guess_because_of_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({"/v1/latency": served(60.0)}) as url:
        given = ["--poisson", "100", "--requests", "200", "--from", url]
        assert main("simulate", given) == 0
        out, err = capsys.readouterr()
        assert "the host's work at more than 60/s" in err
        assert "the host's work" in out

        # Two replicas serve twice as much.
        assert main("simulate", [*given, "--replicas", "2"]) == 0
        assert capsys.readouterr().err == ""


def test_a_capacity_beyond_what_was_served_is_reported_as_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--poisson", "50", "--requests", "300", "--from"]
    with admin_port({"/v1/latency": served(60.0)}) as url:
        assert main("simulate", [*given, url]) == 0
        out, err = capsys.readouterr()
        assert re.search(r"capacity at 99% +at most [0-9]+/s .* 60/s were measured", out)
        assert err == ""
        assert main("simulate", [*given, url, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["served_per_s"] == 60
        assert "upper bounds" in document["bounds"]

    with admin_port({"/v1/latency": served(6000.0)}) as url:
        assert main("simulate", [*given, url]) == 0
        assert "at most" not in capsys.readouterr().out


def test_the_tables_of_page_and_help_leave_nothing_to_guess(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli-measuring.md").read_text()
    tables = [re.search(r'\{"1": [^}]*\}', text) for text in (page, EXAMPLES)]
    for table in tables:
        assert table is not None
        (tmp_path / "table.json").write_text(table[0])
        given = ["--gamma", "300,2", "--requests", "300", "--latency", str(tmp_path / "table.json")]
        assert main("simulate", [*given, "--objective-ms", "50", "--replicas", "2"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert "guess" not in out
        assert "bounds" not in out


def test_a_running_proxy_lends_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    document = sizes(1, 2, 4)
    with admin_port({"/v1/latency": document}) as url:
        assert main("simulate", ["--poisson", "100", "--requests", "100", "--from", url]) == 0

    out = capsys.readouterr().out
    assert "20 ms" in out
    assert "rows of 4" in out
    assert re.search(r"^bounds +latencies are lower bounds", out, re.MULTILINE)


@pytest.mark.parametrize(("options", "processes"), [([], 3), (["--instances", "2"], 2)])
def test_the_processes_are_those_of_the_running_proxy_or_as_given(
    options: list[str], processes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.dumps({**json.loads(sizes(1, 2, 4)), "in_flight": 3})
    with admin_port({"/v1/latency": document}) as url:
        assert main("simulate", ["--poisson", "100", "--requests", "100", "--from", url, *options]) == 0

    assert f"1 replica of {processes} processes" in capsys.readouterr().out


def test_what_a_proxy_records_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({"/v1/trace?seconds=2": TRACE}) as url:
        assert main("record", ["--from", url, "--seconds", "2"]) == 0

    out, err = capsys.readouterr()
    assert out == TRACE
    assert "2 arrivals" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["no-such.csv", "--latency", "4ms+1ms"], "cannot read no-such.csv", id="no trace"),
        pytest.param(["--poisson", "1", "--latency", "4ms"], "'4ms' is not a latency", id="no latency"),
        pytest.param(["--poisson", "1", "--latency", "no.json"], "cannot read no.json", id="no table"),
        pytest.param(["--poisson", "1", "--from", "127.0.0.1:x"], "is not the address of a proxy", id="no address"),
        pytest.param(["--poisson", "1", "--from", "https://h:1"], "is not the address of a proxy", id="https"),
        pytest.param(["--poisson", "1", "--from", "http://127.0.0.1:1"], "http://127.0.0.1:1: ", id="no server"),
    ],
)
def test_what_goes_wrong_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    nobody_there = "http://127.0.0.1:1" in arguments
    assert main("simulate", arguments) == (1 if nobody_there else 2)

    err = capsys.readouterr().err
    assert err.startswith("shoal: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_wrong_port_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({}) as url:
        assert main("record", ["--from", url]) == 1

    assert "404: no such route. Is this the admin port" in capsys.readouterr().err


def test_what_is_no_json_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with admin_port({"/v1/latency": "<html>"}) as url:
        assert main("simulate", ["--poisson", "1", "--from", url]) == 1

    assert "/v1/latency is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--poisson 0", "--poisson 1,2", "--gamma 5", "--poisson x", "--poisson 1 --seed x"])
def test_wrong_arguments_are_explained(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("simulate", [*given.split(), "--latency", "4ms+1ms"]) == 2

    assert "Invalid value for '--" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "x"], "'--seed': 'x' is not a valid integer."),
        (["--requests", "0"], "'--requests': 0 is not in the range x>=1."),
        (["--speed", "0"], "'--speed': 0.0 is not in the range x>0."),
        (["--max-delay-ms", "-1"], "'--max-delay-ms': -1.0 is not in the range x>=0."),
        (["--gamma", "600"], "'--gamma': must be 2 positive numbers, comma-separated, not 600"),
        (["--policy", "Greedy"], "'--policy': 'Greedy' is not one of 'Adaptive', 'Fixed', 'None'."),
    ],
)
def test_an_option_that_cannot_be_meant_states_what_it_accepts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *arguments]) == 2

    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


@pytest.mark.parametrize("command", ["simulate", "record"])
def test_an_unknown_option_is_reported_before_what_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--bogus"]) == 2

    assert "--bogus" in capsys.readouterr().err.splitlines()[-1]


def test_the_module_runs_its_commands_and_no_others() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shoal_proxy", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "--poisson" in run("simulate", "--help").stdout
    assert "--seconds" in run("record", "--help").stdout
    assert "replay" in run("replay").stderr
