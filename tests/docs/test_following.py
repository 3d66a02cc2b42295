"""Pages that keep what they say, and pages that do not: followed in a real shell, in an empty clone."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.following import follow
from tests.docs.pages import PageError, blocks_of
from tests.docs.shell import Shell
from tests.docs.surroundings import apart
from tests.local.live import eventually

pytestmark = pytest.mark.integration
alone = pytest.mark.skipif(apart() is None, reason="needs networks and processes of its own: root, or unshare")


def run(text: str, *, with_cluster: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="page-") as scratch, Shell(Path(scratch), activated=False) as shell:
        follow(list(blocks_of(text, "docs/page.md")), shell, with_cluster=with_cluster)


def running(*command: str) -> bool:
    """Whether a process runs that command."""
    wanted = b"".join(part.encode() + b"\0" for part in command)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


def failure(text: str) -> str:
    with pytest.raises(PageError) as caught:
        run(text)
    return str(caught.value)


def test_a_page_is_one_story() -> None:
    run(
        "```sh\nmkdir a && cd a\nA=5\n```\nthen\n```sh\necho $A $PWD\n```\n```text\n5 /home/me/shoal/a\n```\n"
        '```text title="a/b.txt"\nkept\n```\n```console\n$ cat b.txt\nkept\n```\n'
        "```python\nfrom pathlib import Path\nassert Path('b.txt').read_text() == 'kept\\n'\n```\n"
    )


def test_a_command_that_fails_is_named_with_its_page_and_line() -> None:
    error = failure("Do:\n\n```sh\necho a\nif true; then\n  ls /nowhere\nfi\necho b\n```\n")

    assert error.startswith("docs/page.md:6: ls /nowhere fails\na\nls: cannot access")


def test_a_command_after_a_heredoc_is_named_with_its_line() -> None:
    assert failure("```sh\ncat > f <<'END'\none\nEND\ngrep two f\n```\n").startswith("docs/page.md:5: grep two f fails")


def test_a_block_that_bash_cannot_read_is_named() -> None:
    assert failure("```sh\nif true; then\n```\n").startswith("docs/page.md:2: the block fails\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "```sh\necho '[1]'\n```\n```json\n[2]\n```\n",
            "docs/page.md:5: echo '[1]' prints something else\nshown:   [2]",
        ),
        ("```sh\necho '[1]'\n# [2]\n```\n", "docs/page.md:3: not printed: [2]\nbut: [1]"),
        ("```console\n$ echo a\nb\n```\n", "docs/page.md:2: echo a prints something else\nshown:   b\nprinted: a"),
        ("```console\n$ false\n```\n", "docs/page.md:2: false fails"),
        ("```console\n$ false\nb\n```\n", "docs/page.md:2: false prints something else\nshown but not printed: b"),
    ],
)
def test_an_output_that_is_not_the_shown_one_is_named(text: str, error: str) -> None:
    assert failure(text).startswith(error)


def test_a_refusal_that_is_shown_is_one() -> None:
    run("```console\n$ cat /none\ncat: /none: No such file or directory\n$ pwd\n/home/me/shoal\n```\n")


def test_a_program_that_raises_is_named_with_the_pages_line() -> None:
    error = failure("```python\na = 1\nraise SystemError(a)\n```\n")

    assert error.startswith("docs/page.md:2: ")
    assert 'docs/page.md", line 3' in error


def test_a_command_that_does_not_end_is_named_and_ended() -> None:
    with (
        pytest.raises(PageError) as caught,
        tempfile.TemporaryDirectory(prefix="page-") as scratch,
        Shell(Path(scratch), activated=False, patience_s=0.5) as shell,
    ):
        shell.run("page.md", 2, "echo a\nsleep 1009\n")

    assert str(caught.value) == "page.md:3: sleep 1009 takes too long\na"
    eventually(lambda: not running("sleep", "1009"))


SERVER = "echo starting; echo 'listening on 1'; sleep 1000"
RUNS = "grep -aqs 'sleep[^a-z]1000' /proc/[0-9]*/cmdline"


def test_a_server_runs_beside_what_follows_until_another_takes_its_place() -> None:
    run(
        # What it printed comes before its next command has begun.
        f"<!-- test: server -->\n```console\n$ {SERVER}\nlistening on 1\n```\n"
        f"```sh\nuntil {RUNS}; do sleep 0.01; done\n```\n"
        f"<!-- test: server it runs -->\n```sh\n! {RUNS}\necho it runs >&2\nsleep 999\n```\n"
    )


def test_a_server_that_ends_is_named_with_what_it_said() -> None:
    error = failure("<!-- test: server -->\n```sh\necho no such model >&2; exit 1\n```\n")

    assert error.startswith("docs/page.md:3: exit 1 ended\nno such model")


def test_a_server_that_does_not_end_well_is_named() -> None:
    error = failure(
        "<!-- test: server ready -->\n```sh\ntrap 'exit 7' INT; echo ready; while :; do sleep 0.1; done\n```\n"
        "<!-- test: server ready -->\n```sh\necho ready; sleep 1000\n```\n"
    )

    assert error == "docs/page.md:3: after Ctrl-C its exit status is 7"


@alone
def test_an_answer_that_is_an_error_fails_though_curl_would_not() -> None:
    error = failure(
        "<!-- test: server Serving -->\n```sh\npython3 -m http.server --bind 127.0.0.1 8080\n```\n"
        "```sh\ncurl http://127.0.0.1:8080/\ncurl http://127.0.0.1:8080/none\n```\n"
    )

    assert error.startswith("docs/page.md:7: curl http://127.0.0.1:8080/none fails")


def test_what_needs_a_cluster_is_left_out_without_one() -> None:
    text = "<!-- test: e2e -->\n```sh\nfalse\n```\n"
    run(text)

    with pytest.raises(PageError, match=r"docs/page\.md:3: false fails"):
        run(text, with_cluster=True)


@alone
def test_nothing_that_a_page_started_outlives_it() -> None:
    with tempfile.TemporaryDirectory(prefix="page-") as folder, Shell(Path(folder), activated=False) as shell:
        shell.run("page.md", 2, "setsid sleep 1007 & sleep 1007 &")

    eventually(lambda: not running("sleep", "1007"))
