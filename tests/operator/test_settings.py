"""Settings, and what a wrong one says."""

import re
import subprocess
import sys

import pytest

from shoal_operator.settings import Settings
from shoal_schema.fields.addresses import Address
from shoal_schema.fields.declaring import OPERATOR
from shoal_schema.process.environment import SettingsError, variables
from shoal_schema.resource.policy import Policy


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = Settings.from_env({})

    assert settings.process.namespace == "default"
    assert settings.process.watch_namespaces == ()
    assert settings.process.scrape_interval_s == 2
    assert settings.process.listen_host == "::"
    assert settings.process.service_url == "http://$(NAME).$(NAMESPACE).svc"


def test_every_setting_is_read() -> None:
    given = {
        "SHOAL_LOG_LEVEL": "debug",
        "SHOAL_LOG_FORMAT": "json",
        "SHOAL_OPERATOR_POD_LOG_FORMAT": "json",
        "SHOAL_OPERATOR_PROXY_IMAGE": "p",
        "SHOAL_OPERATOR_RUNTIME_IMAGE": "r",
        "SHOAL_OPERATOR_LISTEN_HOST": "$(POD_IP)",
        "SHOAL_OPERATOR_SERVICE_URL": "http://$(CLUSTER_IP)",
        "SHOAL_OPERATOR_ADMIN_NAMESPACES": "shoal, monitoring",
        "SHOAL_OPERATOR_PEERS": "false",
        "SHOAL_OPERATOR_IDENTITY": "me",
        "SHOAL_OPERATOR_POLICY": '{"secrets": ["*"], "root": true}',
        "SHOAL_OPERATOR_NAMESPACE": "shoal",
        "SHOAL_OPERATOR_WATCH_NAMESPACES": "a,b,",
        "SHOAL_OPERATOR_HEALTH_LISTEN": "127.0.0.1:1",
        "SHOAL_OPERATOR_METRICS_LISTEN": "127.0.0.1:2",
        "SHOAL_OPERATOR_POD_FS_GROUP": "7",
        "SHOAL_OPERATOR_RESYNC_S": "30",
        "SHOAL_OPERATOR_SCRAPE_INTERVAL_S": "0.5",
        "SHOAL_OPERATOR_FOLLOW_INTERVAL_S": "60",
        "SHOAL_OPERATOR_SCALE_DOWN_WINDOW_S": "5",
        "SHOAL_OPERATOR_WORKERS": "3",
        "SHOAL_OPERATOR_UPGRADE_UNAVAILABLE_SERVICES": "4",
        "SHOAL_OPERATOR_UPGRADE_WINDOW": "Sat,Sun 02:00-05:00 UTC",
        "SHOAL_OPERATOR_ACTIVATOR_SELECTOR": "a=b,c=d",
        "SHOAL_OPERATOR_ACTIVATOR_FIRST_PORT": "3000",
        "SHOAL_OPERATOR_ACTIVATOR_PORTS": "10",
    }
    settings = Settings.from_env(given)

    assert set(given) == {name for name, each in variables().items() if each.env and OPERATOR in each.env.readers}

    assert settings.process.admin_namespaces == ("shoal", "monitoring")
    assert settings.process.service_url == "http://$(CLUSTER_IP)"
    assert settings.process.watch_namespaces == ("a", "b")
    assert not settings.process.peers
    assert settings.process.policy == Policy(secrets=("*",), root=True)
    assert (settings.process.resync_s, settings.process.scrape_interval_s, settings.process.workers) == (30, 0.5, 3)
    assert (settings.process.scale_down_window_s, settings.process.pod_fs_group) == (5, 7)
    process = settings.process
    assert (process.upgrade_unavailable_services, process.upgrade_window) == (4, "Sat,Sun 02:00-05:00 UTC")
    assert (process.activator_selector, process.activator_first_port, process.activator_ports) == ("a=b,c=d", 3000, 10)


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("10.0.0.5:8081", ("10.0.0.5", 8081)),
        ("fd00::5:8081", ("fd00::5", 8081)),
        ("[fd00::5]:8081", ("fd00::5", 8081)),
        ("localhost:8081", ("localhost", 8081)),
    ],
)
def test_an_address_of_either_family_is_taken_with_and_without_brackets(value: str, address: tuple[str, int]) -> None:
    assert Settings.from_env({"SHOAL_OPERATOR_HEALTH_LISTEN": value}).process.health_listen == Address(*address)


@pytest.mark.parametrize(
    ("watched", "heartbeat"),
    [
        ("", "shoal-system/shoal-operator"),
        ("team-a,shoal-system", "shoal-system/shoal-operator"),
        ("team-a,team-b", "team-a/shoal-operator-heartbeat"),
    ],
)
def test_the_heartbeat_lies_where_the_watches_are(watched: str, heartbeat: str) -> None:
    environ = {"SHOAL_OPERATOR_NAMESPACE": "shoal-system", "SHOAL_OPERATOR_WATCH_NAMESPACES": watched}

    assert str(Settings.from_env(environ).heartbeat) == heartbeat


@pytest.mark.parametrize("value", ["10.0.0.5", "10.0.0.5:http", "10.0.0.5:65536", "[]:8081"])
def test_what_is_no_address_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="SHOAL_OPERATOR_HEALTH_LISTEN must be HOST:PORT, not"):
        Settings.from_env({"SHOAL_OPERATOR_HEALTH_LISTEN": value})


@pytest.mark.parametrize("value", ["0", "1e9", "often", "nan"])
def test_a_setting_out_of_range_names_key_range_and_value(value: str) -> None:
    with pytest.raises(SettingsError, match="SHOAL_OPERATOR_RESYNC_S must be 1 to 86400, not"):
        Settings.from_env({"SHOAL_OPERATOR_RESYNC_S": value})


def module(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "shoal_operator", *arguments]
    path = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**path, **environ}, check=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"imges": []}', "there is no field policy.imges; did you mean images?"),
        ('{"secrets": "*"}', "policy.secrets must be of type array"),
        ('["*"]', "policy must be of type object"),
        ("no JSON", "SHOAL_OPERATOR_POLICY must be a JSON object, the chart's value `policy`, not 'no JSON'"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused_by_its_field(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        Settings.from_env({"SHOAL_OPERATOR_POLICY": text})


@pytest.mark.integration
def test_a_wrong_setting_ends_the_process_with_a_sentence() -> None:
    result = module(SHOAL_OPERATOR_WORKERS="0")

    assert result.returncode == 2
    assert result.stderr == "shoal-operator: SHOAL_OPERATOR_WORKERS must be 1 to 256, not '0'\n"


@pytest.mark.integration
def test_a_kubeconfig_that_is_missing_ends_the_process_with_a_sentence() -> None:
    result = module("--kubeconfig", "/nowhere/config")

    assert result.returncode == 2
    assert "invalid kubeconfig" in result.stderr


@pytest.mark.integration
def test_the_operator_loads_no_tensor_library_and_none_of_the_clients_thousand_models() -> None:
    code = (
        "import sys; import shoal_operator.operation;"
        "print(sorted({'torch', 'numpy', 'httpx'} & set(sys.modules)),"
        " sum(name.startswith(('kubernetes.client.models.', 'kubernetes.aio.client.models.')) for name in sys.modules))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=path, check=True)
    tensors, models = result.stdout.rsplit(maxsplit=1)

    assert tensors == "[]"
    assert int(models) < 50, "kopf asks for two of them, and each for a few more"


def test_ports_of_the_activator_beyond_the_last_one_are_refused() -> None:
    def last(first: int, count: int) -> int:
        given = {"SHOAL_OPERATOR_ACTIVATOR_FIRST_PORT": str(first), "SHOAL_OPERATOR_ACTIVATOR_PORTS": str(count)}
        process = Settings.from_env(given).process
        return process.activator_first_port + process.activator_ports - 1

    assert last(65000, 536) == 65535
    with pytest.raises(SettingsError, match="SHOAL_OPERATOR_ACTIVATOR_PORTS from 65000 end at 65999"):
        last(65000, 1000)


@pytest.mark.parametrize("window", ["Sat", "25:00-05:00", "Sa 02:00-05:00", "02:00-05:00 CET", "Sat, Sun 02:00-05:00"])
def test_invalid_upgrade_hours_are_rejected_with_the_format(window: str) -> None:
    with pytest.raises(SettingsError, match="SHOAL_OPERATOR_UPGRADE_WINDOW must be days and a time in UTC"):
        Settings.from_env({"SHOAL_OPERATOR_UPGRADE_WINDOW": window})
