"""Objects that were stored under any earlier definition, read and written under this one; and back one version."""

import re
from collections.abc import Iterator

import pytest

from shoal_operator.loop.workqueue import Outcome
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason
from shoal_schema.resource.service import ONCE_DEFAULTED, RENAMED
from tests.operator.samples import BY_HPA, BY_KEDA, DOWNLOADED, EVERYTHING, FOREIGN, GRAPH, OPEN, SECURE, with_fields
from tests.upgrades.installed import Installed, fields_of, lost
from tests.upgrades.recorded import DEFINITIONS, Recorded, Written, present, recorded, written

CORS = {"allowedOrigins": ["https://shop.example.com"]}
OF_NOW = (
    *(
        Written("samples", "present", "InferenceService", spec)
        for spec in (SECURE, FOREIGN, DOWNLOADED, BY_HPA, BY_KEDA, OPEN)
    ),
    Written("samples", "present", "InferenceService", with_fields(EVERYTHING, proxy__cors=CORS)),
    Written("samples", "present", "InferenceGraph", with_fields(GRAPH, proxy__cors=CORS)),
)


def name_of(each: Recorded) -> str:
    return f"{each.plural}-{each.name}"


def objects_of(plural: str, more: tuple[Written, ...] = ()) -> Iterator[Written]:
    return (each for each in (*written(), *more) if each.kind == DEFINITIONS[plural].kind)


def spec_fields(definition: Recorded) -> set[str]:
    return set(fields_of(definition.schema["properties"]["spec"]))


ALL = [each for plural in DEFINITIONS for each in recorded(plural)]
WITH_OLD_NAMES = [each for each in ALL if spec_fields(each) & set(RENAMED)]


def before(plural: str) -> Recorded:
    """Return the newest recorded definition that is another than this commit's."""
    now = present(plural)
    return next(each for each in reversed(recorded(plural)) if each.spec != now.spec)


def has(value: object, field: str) -> bool:
    """Return whether a spec names a field, `queue.maxItems`."""
    name, _, rest = field.partition(".")
    return not field or (isinstance(value, dict) and name in value and has(value[name], rest))


def names_all(conditions: dict[str, Json], fields: set[str]) -> bool:
    """Return whether the condition names the fields, old and new, and is there only if there are such."""
    spec_read = conditions.get(ConditionType.SPEC_READ)
    if spec_read is None or spec_read["reason"] == Reason.RULE_BROKEN:
        return not fields
    words = all(f"spec.{old} " in spec_read["message"] and RENAMED[old] in spec_read["message"] for old in fields)
    return bool(fields) and words and (spec_read["status"], spec_read["reason"]) == ("False", Reason.FIELD_RENAMED)


def is_invalid(conditions: dict[str, Json]) -> bool:
    return any(each["reason"] == Reason.INVALID_SPEC for each in conditions.values())


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_each_recorded_object_is_valid_under_a_recorded_definition(plural: str) -> None:
    found = {each.name: Installed(each) for each in recorded(plural) if each.name in {o.under for o in written()}}

    refusals = [found[each.under].apply(each, f"o{n}") for n, each in enumerate(objects_of(plural))]
    assert [refusal for refusal in refusals if refusal] == []


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_no_field_is_removed_without_its_new_name(plural: str) -> None:
    now = present(plural)
    of_status = set(fields_of(now.schema["properties"]["status"]))
    for each in recorded(plural):
        assert spec_fields(each) - spec_fields(now) <= set(RENAMED), each.name
        stored = {renamed_in_status(field) for field in fields_of(each.schema["properties"]["status"])}
        assert stored <= of_status, each.name


def renamed_in_status(field: str) -> str:
    """Return a status field's present path: the operator writes the status again under it."""
    return re.sub(r"^waitingRoom\b", "activator", field)


@pytest.mark.parametrize("definition", ALL, ids=name_of)
def test_objects_of_an_earlier_definition_lose_only_what_the_operator_names(definition: Recorded) -> None:
    installed = Installed(definition)
    objects = installed.apply_all(objects_of(definition.plural))
    stored = {name: installed.read(name) for name in objects}
    assert objects
    installed.install(present(definition.plural))

    for name, each in objects.items():
        dropped = set(lost(stored[name]["spec"], installed.read(name)["spec"]))
        outcome, conditions = installed.reconcile(name)
        assert outcome is not Outcome.GONE
        assert not is_invalid(conditions), each.source
        assert names_all(conditions, {old for old in dropped if has(each.spec, old)}), each.source
        installed.replace(installed.read(name))


@pytest.mark.parametrize("definition", WITH_OLD_NAMES, ids=name_of)
@pytest.mark.parametrize(("apply", "unnamed"), [(True, set()), (False, ONCE_DEFAULTED)], ids=["apply", "create"])
def test_the_names_are_found_without_the_manifest_that_kubectl_notes(
    definition: Recorded, apply: bool, unnamed: set[str]
) -> None:
    installed = Installed(definition)
    fitting = installed.apply_all(objects_of(definition.plural))
    for name, each in fitting.items():
        manifest = each.manifest(f"plain-{name}")
        if apply:
            installed.server.apply(f"{installed.path}/plain-{name}", manifest)
        else:
            installed.server.post(installed.path, manifest)
    installed.install(present(definition.plural))

    for name, each in fitting.items():
        _, conditions = installed.reconcile(f"plain-{name}")
        assert names_all(conditions, {old for old in RENAMED if has(each.spec, old)} - unnamed), each.source


def test_a_manifest_of_before_is_refused_only_for_names_that_changed() -> None:
    for plural in DEFINITIONS:
        installed = Installed(present(plural))
        for number, each in enumerate(objects_of(plural, OF_NOW)):
            refusal = installed.apply(each, f"o{number}")
            old = [name for name in RENAMED if has(each.spec, name)]
            assert bool(refusal) == bool(old), (each.source, refusal)
            assert all(f'unknown field "spec.{name}"' in refusal for name in old), each.source


@pytest.mark.parametrize("definition", WITH_OLD_NAMES, ids=name_of)
def test_beside_an_older_definition_the_operator_names_the_field_and_writes_its_status(definition: Recorded) -> None:
    installed = Installed(definition)
    for name, each in installed.apply_all(objects_of(definition.plural)).items():
        spec = installed.read(name)["spec"]
        old = [name for name in RENAMED if has(spec, name)]
        _, conditions = installed.reconcile(name)

        assert is_invalid(conditions) == bool(old), each.source
        message = conditions[ConditionType.READY]["message"]
        assert not old or any(f"was renamed to spec.{RENAMED[name]}" in message for name in old), each.source


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_the_definition_before_drops_only_new_fields_and_takes_the_next_write(plural: str) -> None:
    now, earlier = present(plural), before(plural)
    new = spec_fields(now) - spec_fields(earlier)
    installed = Installed(now)
    objects = installed.apply_all(objects_of(plural, OF_NOW))
    for name in objects:
        installed.reconcile(name)
    stored = {name: installed.read(name) for name in objects}
    installed.install(earlier)

    for name, each in objects.items():
        read = installed.read(name)
        assert set(lost(stored[name]["spec"], read["spec"])) <= new, each.source
        assert list(lost(stored[name]["status"], read["status"])) == []
        assert installed.reconcile(name)[0] is not Outcome.GONE
        installed.replace(installed.read(name))
    installed.install(now)
    for name, each in objects.items():
        assert not is_invalid(installed.reconcile(name)[1]), each.source


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_what_was_not_written_meanwhile_comes_back_with_its_definition(plural: str) -> None:
    installed = Installed(present(plural))
    stored = {name: installed.read(name) for name in installed.apply_all(objects_of(plural, OF_NOW))}
    installed.install(before(plural))
    installed.install(present(plural))

    assert {name: installed.read(name) for name in stored} == stored
