from shoal_operator.loop.echoes import Echoes
from shoal_schema.fields.declaring import Json


def version(number: str, uid: str = "u") -> Json:
    return {"metadata": {"uid": uid, "resourceVersion": number}}


def test_event_of_the_operators_write_is_an_echo_and_others_are_not() -> None:
    echoes = Echoes()
    echoes.expect(version("5"))

    assert echoes.is_echo(version("5"))
    assert not echoes.is_echo(version("4"))
    assert not echoes.is_echo(version("6"))
    assert not echoes.is_echo(version("5", uid="other"))


def test_of_two_writes_only_the_last_has_an_echo() -> None:
    echoes = Echoes()
    echoes.expect(version("5"))
    echoes.expect(version("7"))

    assert not echoes.is_echo(version("5"))
    assert echoes.is_echo(version("7"))


def test_a_deleted_object_is_forgotten() -> None:
    echoes = Echoes()
    echoes.expect(version("5"))
    echoes.forget(version("6"))

    assert not echoes.is_echo(version("5"))


def test_response_without_a_version_has_no_echo() -> None:
    echoes = Echoes()
    echoes.expect({})

    assert not echoes.is_echo({"metadata": {}})
