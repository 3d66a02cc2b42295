"""The letters of the world, wherever a spec or a container may say them."""

from typing import Any

import pytest

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

TEXTS = {
    "emoji": "\U0001f680 \U0001f469\U0001f3fd\u200d\U0001f52c",
    "right-to-left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202e",
    "cjk": "\u6f22\u5b57\u304b\u306a \ud55c\uae00",
    "combining": "e\u0301 o\u0308\u0323",
    "four-bytes": "\U0001d4b3 \U00020000 \U0010fffd",
    "breaks": "a\x85b\u2028c\u2029d \x7f \x80 \ufeff",
}
EVERYTHING = " | ".join(TEXTS.values())
"""All of them, in one value."""


def template(cluster: Cluster) -> Any:
    return eventually(lambda: cluster.get("deployment", "adder"))["spec"]["template"]


def test_unicode_in_env_and_annotations_reaches_the_pods(namespace: Cluster) -> None:
    env = [{"name": name.upper().replace("-", "_"), "value": text} for name, text in TEXTS.items()]
    annotations = {f"example.com/{name}": text for name, text in TEXTS.items()}
    namespace.apply(runtime={"env": env}, pod={"annotations": annotations}, model=model(EVERYTHING))
    namespace.until_ready()

    (pod,) = namespace.get("pods")
    runtime = next(each for each in pod["spec"]["containers"] if each["name"] == "runtime")
    assert [entry for entry in env if entry not in runtime["env"]] == []
    assert annotations.items() <= pod["metadata"]["annotations"].items()
    assert predict(namespace) == EXPECTED


def model(note: str) -> dict[str, Any]:
    return {"uri": "file:///models/adder", "parameters": {"note": note}}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_unicode_in_arguments_reaches_the_deployment(namespace: Cluster, text: str) -> None:
    runtime = {"image": "example/server:1", "port": 8000, "command": [text], "args": ["--name", text]}
    namespace.apply(replicas=0, model={}, runtime=runtime)

    container = next(each for each in template(namespace)["spec"]["containers"] if each["name"] == "runtime")
    assert (container["command"], container["args"]) == ([text], ["--name", text])
    eventually(lambda: namespace.condition("adder").get("reason") == "Parked")


def test_unicode_in_the_last_output_reaches_the_status(namespace: Cluster) -> None:
    name = "\U0001f680\u05e9\u6f22e\u0301\U00020000"
    namespace.apply(model={"uri": f"file:///models/{name}"})

    eventually(
        lambda: namespace.condition("adder").get("reason") == "RuntimeCrashed",
        lambda: namespace.kubectl("describe", "infsvc,pods", check=False).stdout,
    )
    assert name in namespace.condition("adder")["message"]
    eventually(lambda: name in namespace.kubectl("describe", "infsvc", "adder").stdout)
