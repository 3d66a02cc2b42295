"""What the tool makes of a page's text."""

import pytest

from tests.docs.following import Command, answers_in_comments, check, commands_of, runs
from tests.docs.pages import Block, PageError, blocks_of, commands_within

SERVICE = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceService
metadata: {name: a}
spec:
  model: {uri: "file:///models/a"}
"""


def read(text: str) -> list[Block]:
    return list(blocks_of(text, "page.md"))


def console(text: str) -> list[Command]:
    return commands_of(Block("page.md", 7, "console", text))


def test_a_block_knows_its_page_line_and_language() -> None:
    [block] = read("# Title\n\n```sh\necho a\necho b\n```\n")

    assert block == Block("page.md", 4, "sh", "echo a\necho b\n")
    assert block.place == "page.md:4"


def test_a_block_in_a_list_is_read_without_its_indentation() -> None:
    [block] = read("- item:\n\n  ```yaml\n  env:\n    A: b\n  ```\n")

    assert block.text == "env:\n  A: b\n"


def test_comments_above_a_fence_are_its_notes() -> None:
    [block] = read("text\n<!-- test: e2e -->\n<!-- test: server event=model_ready -->\n```sh\necho\n```\n")

    assert block.notes == {"e2e": "", "server": "event=model_ready"}


def test_json_or_text_directly_below_sh_is_its_output() -> None:
    blocks = read("```sh\na\n```\n```json\n{}\n```\n```text\nno output\n```\n\n```json\n{}\n```\n```sh\nb\n```\n")

    assert [block.answers for block in blocks] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n\n```\necho\n```\n", "page.md:3: say what this block is, not ''"),
        ("```perl\n```\n", "page.md:1: say what this block is, not 'perl'"),
        ("a\n```sh\necho\n", "page.md:2: this block is not closed"),
        ("Run\n\n    make test\n", "page.md:3: an indented block has no language; fence it: make test"),
        ("<!-- test: sever -->\n```sh\n```\n", "page.md:1: no test knows what this means"),
        ("<!-- test: skip -->\n```sh\n```\n", "page.md:1: no test knows what this means"),
        ("<!-- test: e2e perhaps -->\n```sh\n```\n", "page.md:1: no test knows what this means"),
        ("<!-- test:e2e-->\n\n```sh\n```\n", "page.md:1: this comment belongs directly above a fence"),
        ("<!-- test: e2e -->", "page.md:1: this comment belongs directly above a fence"),
    ],
)
def test_what_no_test_would_see_is_an_error(text: str, message: str) -> None:
    with pytest.raises(PageError, match="^" + message.replace("(", r"\(")):
        read(text)


def test_commands_within_a_text_are_blocks_of_one_line() -> None:
    text = "Serve it with `shoal serve a`,\nthen `curl localhost -d '{}'`; `pip install b` brings `curl`.\n"

    assert list(commands_within(text, "page.md")) == [
        Block("page.md", 1, "sh", "shoal serve a\n", {"server": ""}),
        Block("page.md", 2, "sh", "curl localhost -d '{}'\n"),
    ]


def test_lines_of_a_list_may_be_indented() -> None:
    assert read("- item\n\n    more of it\n\n1. one\n\n   two\n") == []


def test_lines_after_a_command_are_its_output() -> None:
    assert console("$ ls a\nb\n  c\n$ pwd\n") == [Command(7, "ls a", "b\n  c\n"), Command(10, "pwd", "")]


def test_a_command_goes_on_while_a_quote_is_open_or_a_backslash_ends_it() -> None:
    commands = console("$ curl -d '{\n  1}' \\\n  host\nanswer\n$ echo it  # isn't it\n")

    assert commands == [Command(7, "curl -d '{\n  1}' \\\n  host", "answer\n"), Command(11, "echo it  # isn't it", "")]


def test_a_console_begins_with_a_command() -> None:
    with pytest.raises(PageError, match=r"page\.md:7: a console block begins with a command"):
        console("answer\n")


def test_a_comment_of_json_is_an_output() -> None:
    block = Block("page.md", 3, "sh", '# first\ncurl x\n# {"a": 1}\n# [1]\n')

    assert list(answers_in_comments(block)) == [(5, '{"a": 1}'), (6, "[1]")]


@pytest.mark.parametrize(
    ("language", "text", "notes", "message"),
    [
        ("json", "{'a': 1}", {}, "this json is wrong"),
        ("toml", "a = b", {}, "this toml is wrong"),
        ("yaml", "a: b: c", {}, "this yaml is wrong"),
        ("yaml", "a: b", {}, "no resource"),
        (
            "yaml",
            "a: b",
            {"as": "cat"},
            "there is no check for 'cat'; there are container, envoy, graph, images, spec, route, values",
        ),
        ("yaml", "kind: InferenceService\nspec: {models: {}}", {}, "there is no field spec.models"),
        (
            "yaml",
            SERVICE + "  scaling: {minReplicas: 3, maxReplicas: 2}\n",
            {},
            "minReplicas must not exceed maxReplicas",
        ),
        ("yaml", "env: {A: b}", {"as": "container"}, "env"),
        ("yaml", "server: {cmd: [a]}", {"as": "images"}, "image 'server': Object contains unknown field"),
        ("yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}", {}, "prots"),
        ("python", "def f(:", {}, "this python is wrong"),
    ],
)
def test_a_block_that_cannot_be_meant_is_named(language: str, text: str, notes: dict[str, str], message: str) -> None:
    with pytest.raises(PageError) as caught:
        check(Block("page.md", 3, language, text, notes))

    assert str(caught.value).startswith("page.md:3: ")
    assert message in str(caught.value)


def test_what_needs_a_cluster_runs_only_with_one() -> None:
    plain, cluster, never = (Block("page.md", 1, "sh", "", notes) for notes in ({}, {"e2e": ""}, {"skip": "why"}))

    assert [runs(block, with_cluster=False) for block in (plain, cluster, never)] == [True, False, False]
    assert [runs(block, with_cluster=True) for block in (plain, cluster, never)] == [True, True, False]
