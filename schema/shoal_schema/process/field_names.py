"""Names of InferenceService fields in messages of processes, which name their environment variables."""

import re

from shoal_schema.process.environment import manifest_fields

_VARIABLE = re.compile(
    r"(?P<set>\b[Ss]et )?(?P<variable>SHOAL_[A-Z_]+)(?P<value>=[\w.,]*\w)?(?P<said> \([A-Za-z.]+\))?"
)
"""A variable in a message, with an optional value, and the field in parentheses if the message names it."""


def with_field_names(sentence: str, verb: str = "pass --set") -> str:
    """Put the field's name before each environment variable in a process's message.

    Args:
        sentence: message, such as "set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle)".
        verb: replaces "set" before a value: "set" in a message on a resource.
    """
    names = {each.env.name: name for name, each in manifest_fields().items() if each.env}

    def named(match: re.Match[str]) -> str:
        variable, value, said = match.group("variable"), match.group("value") or "", match.group("said") or ""
        field = names.get(variable)
        if field is None:
            return match.group()
        asked = match["set"] or ""
        if value and asked:
            asked = f"{verb[0].upper() if asked.istitle() else verb[0]}{verb[1:]} "
        return f"{asked}{field}{value} ({variable}){'' if said == f' ({field})' else said}"

    return _VARIABLE.sub(named, sentence)
