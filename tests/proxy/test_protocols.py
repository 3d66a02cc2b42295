"""The table of protocols: what it declares is served, and one entry is enough."""

import json
import subprocess
import sys
from pathlib import Path

from shoal_proxy.activator.headers import HEALTHY
from shoal_proxy.codecs.protocols import CODECS
from shoal_proxy.rpc import inference_pb2
from shoal_schema.interfaces.protocols import GRPC, GRPC_SERVICE, HTTP, RESULT, expand
from tests import plain
from tests.fakes import running_proxy
from tests.proxy.added_protocol import KEY

ROOT = Path(__file__).parents[2]


def test_every_protocol_has_a_codec_and_each_path_one_owner() -> None:
    paths = [path for each in HTTP.protocols for pattern in {*each.patterns} for path in expand(pattern)]

    assert set(CODECS) == {each.label for each in HTTP.protocols}
    assert len(paths) == len(set(paths))
    for each in HTTP.protocols:
        for path in each.infer_paths:
            assert CODECS[HTTP.owner(path).label] is CODECS[each.label]


def test_optional_parts_of_a_pattern_are_expanded() -> None:
    assert expand("/a") == ("/a",)
    assert set(expand("/a[/{b}]:c[/d]")) == {"/a:c", "/a:c/d", "/a/{b}:c", "/a/{b}:c/d"}


def test_the_grpc_entry_lists_the_methods_of_the_service() -> None:
    methods = {path.removeprefix(f"/{GRPC_SERVICE}/") for path in GRPC.patterns}

    assert methods == set(inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name)
    assert inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name == GRPC_SERVICE


def test_all_paths_of_the_table_are_served_and_checks_are_those_of_the_activator() -> None:
    with running_proxy(proxy__docs=True) as running, plain.Client(base_url=running.url) as client:
        for page in HTTP.pages:
            for path in expand(page.path):
                answer = client.request(page.methods[0], path.format(model="double", version="1", id="0"))
                if path == RESULT:
                    assert answer.status_code == 404, path  # asynchronous requests are off
                    continue
                assert answer.status_code in ({200} if "GET" in page.methods else {405, 501}), path
        for each in HTTP.protocols:
            for path in each.infer_paths:
                answer = client.get(path.format(model="double", version="1"))
                assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(each.methods)), path
        assert {path: client.get(path).content for path in HEALTHY} == HEALTHY


def test_one_entry_and_one_codec_add_a_protocol(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text(KEY)
    command = [sys.executable, "-m", "tests.proxy.added_protocol", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "served": ["2 2 2 2\n4 4 4 4\n"] * 3,
        "unknown": [404, "lines:"],
        "method": 405,
        "listed": True,
        "counted": True,
        "declared": True,
        "checked": [{"ok": 1}, 200],
        "guarded": [401, 200],
        "models": ["cat", "/lines", ""],
    }
