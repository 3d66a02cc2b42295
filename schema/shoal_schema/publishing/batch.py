"""What ``BatchInference`` is, beside its spec: names, columns, status."""

from shoal_schema.declaring import Json, Rule
from shoal_schema.publishing.crd import Definition
from shoal_schema.resource import BATCH_KIND, BATCH_PLURAL
from shoal_schema.resource.offline import BatchInferenceSpec

BATCH_SHORT_NAME = "batchinf"
_NAME_MAX_LENGTH = 59
"""A Job's pods are called after it and their number, of up to three digits, and that must be a DNS label."""
_RAY_NAME_MAX_LENGTH = 47
_RULES = (
    Rule(
        f"self.spec.engine != 'Ray' || size(self.metadata.name) <= {_RAY_NAME_MAX_LENGTH}",
        f"KubeRay takes names of at most {_RAY_NAME_MAX_LENGTH} characters: give it a shorter one, or use engine: Job",
        "",
    ),
)


def batches() -> Definition:
    """Return what ``BatchInference`` is."""
    return Definition(
        kind=BATCH_KIND,
        plural=BATCH_PLURAL,
        short_name=BATCH_SHORT_NAME,
        description="Rows that lie somewhere, scored with a model; where their answers go.",
        spec=BatchInferenceSpec,
        status=_status(),
        columns=_columns(),
        conditions="What is true of the job, why, and what to do about it.",
        name_max_length=_NAME_MAX_LENGTH,
        rules=_RULES,
    )


def _columns() -> list[Json]:
    return [
        {"name": "Status", "type": "string", "jsonPath": ".status.reason"},
        {"name": "Shards", "type": "string", "jsonPath": ".status.shards.text"},
        {"name": "Rows", "type": "integer", "jsonPath": ".status.rows"},
        {"name": "Errors", "type": "integer", "jsonPath": ".status.failedRows"},
        {"name": "Rows/s", "type": "integer", "jsonPath": ".status.rowsPerSecond"},
        {"name": "Ends", "type": "string", "jsonPath": ".status.estimatedEnd"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
    ]


def _status() -> Json:
    return {
        "reason": _text("The state in one word: `Complete`, `Running`, `Suspended`, or what keeps it from going on."),
        "message": _text("The same in a sentence, with what to do about it."),
        "jobName": _text("The Job, or RayJob, that does it. Once it is named here, none is made again."),
        "model": {
            "type": "object",
            "description": "What the name of the model stands for, where it is one that moves.",
            "properties": {
                "uri": _text("The name that was resolved, from `spec.model.uri`."),
                "resolved": _text("The version of the model that pods load."),
            },
        },
        "shards": {
            "type": "object",
            "description": "Parts of the input, and how many of them are done.",
            "properties": {
                "done": _count("Shards whose results are written."),
                "total": _count("All shards of the input."),
                "text": _text("`done` and `total` as `kubectl get` shows them: `12/40`."),
            },
        },
        "rows": _count("Rows that have a result or an error."),
        "failedRows": _count("Rows that have an error."),
        "rowsPerSecond": _count("Rows that all pods together score in a second now."),
        "estimatedEnd": _time("When the job is done at the present rate."),
        "startTime": _time("When the first pods of the job were allowed to run."),
        "completionTime": _time("When the job was complete, or had failed."),
    }


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _count(description: str) -> Json:
    return {"type": "integer", "format": "int64", "minimum": 0, "description": description}


def _time(description: str) -> Json:
    return {"type": "string", "format": "date-time", "description": description}
