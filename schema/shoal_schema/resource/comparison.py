"""Tolerances of the comparison of a candidate with the stable revision."""

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.quantities import DECIMAL, SHARE
from shoal_schema.fields.rules import Given, Matches, Not, Rule, any_of


class OutputToleranceSpec(SettingsSection, frozen=True):
    """Tolerated difference of one output between candidate and stable revision."""

    agreement: Annotated[
        str,
        Meta(
            pattern=SHARE,
            max_length=24,
            description="Share of rows that must agree, beyond the rows in which the stable revision disagrees with"
            " itself. `1`: all rows.",
        ),
    ] = "0.999"
    max_abs_error: Annotated[
        str,
        Meta(
            pattern=DECIMAL,
            max_length=24,
            description="A number agrees if it differs by at most `maxAbsError` + `maxRelError` x the stable number.",
        ),
    ] = "0.001"
    max_rel_error: Annotated[
        str,
        Meta(
            pattern=DECIMAL,
            max_length=24,
            description="Part of the tolerance that grows with the stable number, as described at `maxAbsError`.",
        ),
    ] = "0.01"
    top_k: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1000,
                description="Instead of the numbers, compare which `topK` positions of the row have the largest ones."
                " 1 compares the predicted class.",
            ),
        ]
        | None
    ) = None


class LatencyToleranceSpec(SettingsSection, frozen=True):
    """Tolerated execution times of the candidate."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            any_of(Not(Given("maxRatio")), Matches("maxRatio", "^[0.]*[1-9]")),
            "maxRatio must be more than 0: no candidate takes no time",
            "maxRatio",
        ),
    )

    max_ratio: (
        Annotated[
            str,
            Meta(
                pattern=DECIMAL,
                max_length=24,
                description="Maximum ratio of the candidate's execution time to the stable revision's, for batches of"
                " an equal number of rows. Default: times are reported, and a slower candidate does not fail.",
            ),
        ]
        | None
    ) = None


class ErrorToleranceSpec(SettingsSection, frozen=True):
    """Tolerated errors of the candidate."""

    max_share: Annotated[
        str,
        Meta(
            pattern=SHARE,
            max_length=24,
            description="Maximum share of rows that fail on the candidate, beyond the share that fails on the stable"
            " revision.",
        ),
    ] = "0.001"


class CompareSpec(SettingsSection, frozen=True):
    """Comparison of the candidate with the stable revision."""

    outputs: Annotated[
        dict[str, OutputToleranceSpec],
        Meta(
            max_length=64,
            description="Tolerances by output. Booleans and text must be equal in any case, integers unless `topK` is"
            " set. Default for outputs that are not listed: the defaults of the fields below.",
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    latency: LatencyToleranceSpec = LatencyToleranceSpec()
    errors: ErrorToleranceSpec = ErrorToleranceSpec()
    allow_signature_change: Annotated[
        bool,
        Meta(
            description="Whether the candidate's outputs may have other names, datatypes or shapes. Outputs that both"
            " revisions have are compared. Inputs must be the same in any case."
        ),
    ] = False
