"""Events about a service."""

from collections.abc import Mapping, Sequence

from shoal_operator.children.conditions import find
from shoal_operator.children.events import ServiceEvent
from shoal_operator.children.exact import settings_text
from shoal_operator.errors import ApiError
from shoal_operator.status.blocked import advice
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import FAILURES, ConditionType, Reason

_ANNOUNCED = (ConditionType.READY, ConditionType.SAME_PRECISION)


def transitions(before: Sequence[Json], after: Sequence[Json]) -> list[ServiceEvent]:
    """Return the Events: one for each new failure, and for each change of Ready, the precision or a verdict."""
    # One Event for conditions that share reason and message.
    found: dict[tuple[str, str], ServiceEvent] = {}
    for condition in after:
        old = find(list(before), ConditionType(condition["type"])) or {}
        same = (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"])
        warning = condition["reason"] in FAILURES
        # A service without a candidate yet has no verdict.
        judged = condition["type"] == ConditionType.CANDIDATE_JUDGED and old
        if same or not (warning or judged or condition["type"] in _ANNOUNCED):
            continue
        key = (condition["reason"], condition["message"])
        found[key] = ServiceEvent(warning, Reason(condition["reason"]), condition["message"])
    return list(found.values())


def removed_settings_event(settings: Mapping[str, Sequence[str]]) -> ServiceEvent:
    """Return the Event about foreign settings that were removed from pods."""
    text = (
        f"removed from the Deployment: {settings_text(settings)}. Variables that start with SHOAL_ come from the spec."
        " Set the field of the spec, or proxy.env"
    )
    return ServiceEvent(warning=True, reason=Reason.SETTING_REMOVED, message=text)


def unwritten_status_event(error: ApiError) -> ServiceEvent:
    """Return the Event about a status that the operator may not write."""
    text = (
        f"the status cannot be written, so all of it may be outdated, including Ready: {error}"
        f"{advice(error.code, error.message)}"
    )
    return ServiceEvent(warning=True, reason=Reason.APPLY_FAILED, message=text)


def other_owner_event(keeper: str, me: str) -> ServiceEvent:
    """Return the Event about a service that another install owns."""
    text = (
        f"the operator in namespace {keeper} owns this service; the one in {me} does not write to it while that "
        "operator responds. Uninstall one of them, or give them different watchNamespaces"
    )
    return ServiceEvent(warning=True, reason=Reason.ANOTHER_OPERATOR, message=text)
