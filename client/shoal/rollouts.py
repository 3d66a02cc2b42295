"""``shoal rollout``: status of a rollout by candidate, and commands to its operator, through kubectl."""

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from shoal.kubectl import kubectl, output_of
from shoal.printing import json_text, table
from shoal.serving.errors import LocalError
from shoal_schema.resource import GROUP, PLURAL
from shoal_schema.resource.conditions import ConditionType, Status
from shoal_schema.resource.rollout import COMMAND_ANNOTATION, RolloutCommand

Json = Mapping[str, Any]

# What each action requires of the phase, and what it reports.
_PHASES: Final = {
    RolloutCommand.PAUSE: ("Waiting", "Comparing"),
    RolloutCommand.ABORT: ("Waiting", "Comparing", "Paused", "Failed"),
    RolloutCommand.PROMOTE: ("Waiting", "Comparing", "Paused", "Failed"),
    "resume": ("Paused",),
}
_DONE: Final = {
    RolloutCommand.PAUSE: "paused: the candidate {candidate} gets no rows",
    RolloutCommand.ABORT: "aborted: the candidate {candidate} is removed; {stable} serves",
    RolloutCommand.PROMOTE: "promoted: {candidate} replaces {stable}",
    "resume": "resumed: the candidate {candidate} is compared again",
}
_MIB: Final = 1 << 20
_FIGURES: Final = {
    "rows": "rows of the candidate",
    "disagreement": "disagreeing rows",
    "latencyRatio": "execution time, candidate / stable",
    "errors": "failed rows",
}


def rollout(options: SimpleNamespace) -> int:
    """Show a service's rollout, or send a command to it.

    Raises:
        LocalError: kubectl failed, or the rollout's phase does not permit the action.
    """
    command = kubectl("shoal rollout", options.context)
    command += ("--namespace", options.namespace) if options.namespace else ()
    named = (f"{PLURAL}.{GROUP}", options.name)
    service = json.loads(asyncio.run(output_of(command, "get", *named, "--output", "json")))
    state: Json = (service.get("status") or {}).get("rollout") or {}
    if options.action == "status":
        print(json_text(state) if options.json else status_text(service))
        return 0
    change = annotation_change(options.action, options.name, state)
    asyncio.run(output_of(command, "annotate", *named, "--overwrite", change))
    print(f"{options.name} {_DONE[options.action].format_map(state)}")
    return 0


def annotation_change(action: str, name: str, state: Json) -> str:
    """Return the argument of ``kubectl annotate`` for an action.

    A command names the candidate, so that it has no effect on a later one.

    Raises:
        LocalError: the phase of the rollout does not permit the action.
    """
    phase, allowed = state.get("phase", "Stable"), _PHASES[action]
    if phase not in allowed:
        late = phase == "Promoting" and action in {RolloutCommand.ABORT, RolloutCommand.PAUSE}
        remedy = ". To end the promotion, apply the former spec" if late else ""
        raise LocalError(
            f"{action} requires a rollout in phase {' or '.join(allowed)}; {name} is in phase {phase}{remedy}"
        )
    return f"{COMMAND_ANNOTATION}-" if action == "resume" else f"{COMMAND_ANNOTATION}={action} {state['candidate']}"


def status_text(service: Json) -> str:
    """Return the state of a service's rollout as a table and a sentence."""
    name, status = service["metadata"]["name"], service.get("status") or {}
    state: Json = status.get("rollout") or {}
    if not state:
        return f"{name} has no candidate: rollout.strategy is {_strategy(service)}"
    rows = [["service", name], ["phase", state.get("phase", "")], ["stable", state.get("stable", "")]]
    if state.get("candidate"):
        rows.append(["candidate", state["candidate"]])
    if state.get("step"):
        shares = [f"{state[each]} % of {unit}" for each, unit in _SHARES.items() if state.get(each)]
        rows.append(["step", ", ".join([f"{state['step']} of {state.get('steps', '?')}", *shares])])
    figures = state.get("figures") or {}
    for field, title in _FIGURES.items():
        if field in figures:
            suffix = f" ({figures['output']})" if field == "disagreement" and figures.get("output") else ""
            rows.append([title, f"{figures[field]}{suffix}"])
    if "memoryBytes" in figures:
        used, usual = (figures[field] / _MIB for field in ("memoryBytes", "stableMemoryBytes"))
        rows.append(["memory, candidate / stable", f"{used:,.0f} / {usual:,.0f} MiB"])
    if "startSeconds" in figures:
        times = f"{figures['startSeconds']} / {figures['stableStartSeconds']} s"
        rows.append(["start of a pod, candidate / stable", times])
    conditions = status.get("conditions") or []
    judged: Json = next((each for each in conditions if each.get("type") == ConditionType.CANDIDATE_JUDGED), {})
    sentence = state.get("verdict") or judged.get("message") or ""
    # The condition names the obstacle, such as a missing GPU, where there is no verdict.
    if judged.get("status") == Status.FALSE and judged.get("message"):
        sentence = judged["message"]
    return f"{table(rows)}\n\n{sentence}" if sentence else table(rows)


_SHARES: Final = {"shadow": "batches", "weight": "requests"}


def _strategy(service: Json) -> str:
    return str(((service.get("spec") or {}).get("rollout") or {}).get("strategy", "Rolling"))
