"""Name and version of the model, which proxy and runtime read."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.declaring import (
    MODEL,
    NAME,
    NAME_IN_WORDS,
    PROXY,
    RUNTIME,
    Env,
    SettingsSection,
)


class Metadata(SettingsSection, frozen=True):
    """Identity of a service."""

    name: (
        Annotated[
            str,
            Meta(pattern=NAME, max_length=253, description="Name of the model, in clients' paths and at the runtime."),
            Env("SHOAL_MODEL_NAME", PROXY, RUNTIME, MODEL, allowed=NAME_IN_WORDS),
        ]
        | None
    ) = None
