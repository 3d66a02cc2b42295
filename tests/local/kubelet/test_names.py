"""The hosts file of containers."""

from typing import Any

from shoal_local.kubelet.node import hosts_text


def service(name: str, address: str | None) -> dict[str, Any]:
    """Return a Service of the namespace ``team``."""
    spec = {} if address is None else {"clusterIP": address}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


def test_services_that_have_an_address_are_found_by_each_of_their_names() -> None:
    text = hosts_text(
        "127.0.0.1 localhost\n", [service("cat", "127.1.2.3"), service("headless", "None"), service("new", None)]
    )

    assert text.splitlines() == ["127.0.0.1 localhost", "127.1.2.3 cat.team cat.team.svc cat.team.svc.cluster.local"]
    assert text.endswith("\n")
