"""Field names in messages of processes."""

from shoal_schema.process.field_names import with_field_names


def test_a_processes_sentence_gets_the_fields_name() -> None:
    sentence = "SHOAL_QUEUE_MAX_ROWS must be at least 32, not 1"

    assert with_field_names(sentence) == ("queue.maxRows (SHOAL_QUEUE_MAX_ROWS) must be at least 32, not 1")
    assert with_field_names("SHOAL_UNKNOWN, SHOAL_MODEL_URI") == ("SHOAL_UNKNOWN, model.uri (SHOAL_MODEL_URI)")
    assert with_field_names("out of memory") == "out of memory"
    assert with_field_names("set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it") == (
        "pass --set model.allowPickle=true (SHOAL_MODEL_ALLOW_PICKLE) if you trust it"
    )
    assert (
        with_field_names("SHOAL_MODEL_URI (beside it) is empty") == "model.uri (SHOAL_MODEL_URI) (beside it) is empty"
    )


def test_a_message_on_a_resource_names_no_option() -> None:
    said = "Set SHOAL_MODEL_TRUSTED_TYPES=a.b (model.trustedTypes) if you trust it"

    assert with_field_names(said, "set") == "Set model.trustedTypes=a.b (SHOAL_MODEL_TRUSTED_TYPES) if you trust it"
    assert with_field_names(said).startswith("Pass --set model.trustedTypes=a.b (")
