"""A misspelt `SHOAL_*` name stops the process it was meant for, and no other process of the same pod."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal_operator.settings
import shoal_proxy.settings
import shoal_runtime.settings
from shoal_proxy.errors import ProxyError
from shoal_schema.fields.declaring import Process
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.process.environment import SettingsError, variables
from shoal_schema.process.unknown_variables import FAMILIES

ROOT = Path(__file__).parents[2]
ALL = set(variables())
Read = Callable[[dict[str, str]], object]


def proxy(environ: dict[str, str]) -> object:
    return shoal_proxy.settings.Settings.from_env(environ)


def runtime(environ: dict[str, str]) -> object:
    return shoal_runtime.settings.Settings.from_env({"SHOAL_MODEL_URI": "/models/cat", **environ})


def operator(environ: dict[str, str]) -> object:
    return shoal_operator.settings.Settings.from_env(environ)


def refused(read: Read, environ: dict[str, str]) -> str:
    try:
        read(environ)
    except SettingsError as error:
        return str(error)
    return ""


def readers(name: str) -> set[Process]:
    env = variables()[name].env
    assert env is not None
    return set(env.readers)


def test_each_family_is_of_the_component_that_reads_it() -> None:
    for name in ALL:
        for component, family in FAMILIES.items():
            if name.startswith(family):
                assert readers(name) == {component}


def test_the_pages_of_limits_name_every_setting_that_is_a_bound_and_no_other() -> None:
    text = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("limits*.md"))
    named = set(re.findall(r"`(SHOAL_[A-Z_]+[A-Z])`", text))
    bounds = {
        name
        for name in ALL
        if re.search(r"_MAX_(?!DELAY)|_MIN_BYTES_PER|_(HEAD|BODY|WRITE|IDLE|LOAD|FETCH)_TIMEOUT", name)
    }
    assert named <= ALL
    assert bounds <= named


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_name_of_one_component_is_no_fault_for_another(name: str) -> None:
    for read in (proxy, runtime, operator):
        assert "there is no setting" not in refused(read, {name: ""})


@pytest.mark.parametrize(
    ("read", "name", "meant"),
    [
        (proxy, "SHOAL_PROXY_LISTENS", "SHOAL_PROXY_LISTEN"),
        (proxy, "SHOAL_PORXY_LISTEN", "SHOAL_PROXY_LISTEN"),
        (runtime, "SHOAL_RUNTIME_DEVISE", "SHOAL_RUNTIME_DEVICE"),
        (runtime, "SHOAL_RUNTIME_DEVICES", "SHOAL_RUNTIME_DEVICE"),
        (operator, "SHOAL_OPERATOR_WATCH_NAMESPACE", "SHOAL_OPERATOR_WATCH_NAMESPACES"),
        (proxy, "SHOAL_BATCHING_MAX_BATCH", "SHOAL_BATCHING_MAX_BATCH_SIZE"),
        (runtime, "SHOAL_BATCHING_MAX_BATCH", "SHOAL_BATCHING_MAX_BATCH_SIZE"),
        (runtime, "SHOAL_MODEL_ALLOW_PICKLES", "SHOAL_MODEL_ALLOW_PICKLE"),
        (proxy, "SHOAL_QUEUE_TIMEOUT_S", "SHOAL_QUEUE_TIMEOUT_MS"),
        (proxy, "SHOAL_TEAM", "SHOAL_PROXY_, SHOAL_QUEUE_"),
        (operator, "SHOAL_TEAM", "SHOAL_PROXY_, SHOAL_QUEUE_"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_one(read: Read, name: str, meant: str) -> None:
    for value in ("1", ""):
        message = refused(read, {name: value})
        assert f"there is no setting {name};" in message
        assert meant in message


SERVICES = {
    "SHOAL_SERVICE_HOST": "10.96.0.7",
    "SHOAL_SERVICE_PORT": "80",
    "SHOAL_PORT": "tcp://10.96.0.7:80",
    "SHOAL_OPERATOR_SERVICE_HOST": "10.96.0.8",
    "SHOAL_OPERATOR_SERVICE_PORT_METRICS": "9090",
    "SHOAL_PROXY_SERVICE_PORT": "80",
    "SHOAL_PROXY_PORT": "tcp://10.96.0.8:80",
    "SHOAL_RUNTIME_PORT_8001_TCP": "tcp://10.96.0.9:8001",
    "SHOAL_RUNTIME_PORT_8001_TCP_PROTO": "tcp",
    "SHOAL_RUNTIME_PORT_8001_TCP_PORT": "8001",
    "SHOAL_RUNTIME_PORT_8001_TCP_ADDR": "10.96.0.9",
    "SHOAL_WEB_PORT_53_UDP": "udp://10.96.0.9:53",
}


@pytest.mark.parametrize("read", [proxy, runtime, operator])
def test_services_called_shoal_something_break_no_pod(read: Read) -> None:
    assert refused(read, SERVICES) == ""
    assert "there is no setting SHOAL_WEB_PORT" in refused(read, {"SHOAL_WEB_PORT": "80"})


def test_every_reason_of_the_proxys_errors_is_declared() -> None:
    reasons = {each.reason for each in _below(ProxyError)} - {None}

    assert reasons <= set(RejectionReason)
    assert {RejectionReason.INVALID, RejectionReason.DRAINING, RejectionReason.DEADLINE} <= reasons


def _below(kind: type[ProxyError]) -> list[type[ProxyError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _below(child))]
