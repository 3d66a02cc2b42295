"""The definition of ``BatchInference``: names, columns and status."""

from shoal_schema.fields.declaring import Json
from shoal_schema.publishing.crd import Definition
from shoal_schema.resource import BATCH_KIND, BATCH_PLURAL
from shoal_schema.resource.offline import BATCH_RULES, BatchInferenceSpec

BATCH_SHORT_NAME = "batchinf"
_NAME_MAX_LENGTH = 59
"""Pods of a Job add an index of up to three digits to its name, which must be a DNS label."""
_COLUMNS: list[Json] = [
    {"name": "Status", "type": "string", "jsonPath": ".status.reason"},
    {"name": "Shards", "type": "string", "jsonPath": ".status.shards.text"},
    {"name": "Rows", "type": "integer", "jsonPath": ".status.rows"},
    {"name": "Errors", "type": "integer", "jsonPath": ".status.failedRows"},
    {"name": "Rows/s", "type": "integer", "jsonPath": ".status.rowsPerSecond"},
    {"name": "Ends", "type": "string", "jsonPath": ".status.estimatedEnd"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
]


def batches() -> Definition:
    """Return the definition of ``BatchInference``."""
    return Definition(
        kind=BATCH_KIND,
        plural=BATCH_PLURAL,
        short_name=BATCH_SHORT_NAME,
        description="A job that scores the rows of files with a model.",
        spec=BatchInferenceSpec,
        status=_STATUS,
        columns=_COLUMNS,
        conditions="Conditions of the job, with reason and remedy.",
        name_max_length=_NAME_MAX_LENGTH,
        rules=BATCH_RULES,
    )


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _count(description: str) -> Json:
    return {"type": "integer", "format": "int64", "minimum": 0, "description": description}


def _time(description: str) -> Json:
    return {"type": "string", "format": "date-time", "description": description}


_STATUS: Json = {
    "reason": _text(
        "State in one word: `Complete`, `Running`, `Suspended`, or the reason that the job does not continue."
    ),
    "message": _text("The reason in a sentence, with the remedy."),
    "jobName": _text("Name of the Job or RayJob. Once it is set, no other is created."),
    "model": {
        "type": "object",
        "description": "Version of a model with a moving name.",
        "properties": {
            "uri": _text("The moving name, from `spec.model.uri`."),
            "resolved": _text("The version that pods load."),
        },
    },
    "shards": {
        "type": "object",
        "description": "Progress in shards, the parts of the input.",
        "properties": {
            "done": _count("Shards whose results are written."),
            "total": _count("All shards of the input."),
            "text": _text("`done` and `total` as `kubectl get` shows them: `12/40`."),
        },
    },
    "rows": _count("Rows that have a result or an error."),
    "failedRows": _count("Rows that have an error."),
    "rowsPerSecond": _count("Present rate of all pods, in rows per second."),
    "estimatedEnd": _time("Estimated time of completion at the present rate."),
    "startTime": _time("Time at which pods were first allowed to run."),
    "completionTime": _time("Time at which the job completed or failed."),
}
