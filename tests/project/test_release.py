"""What a release states of its artifacts, and how `make release-check` reports its steps."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from release.__main__ import Table
from release.attestations import CHECKSUMS, notes, provenance, sign, write_checksums
from release.workspace import ROOT, Skipped, Workspace, run, version
from shoal_schema.version import VERSION

CHANGELOG = (
    "# Changelog\n\n## 0.2.0 - 2027-01-02\n\n- new\n\n### Tools\n\n- more\n\n## 0.1.0 (unreleased)\n\nThe first.\n"
)


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    out.mkdir()
    scratch.mkdir()
    return Workspace(out, scratch, "0.2.0")


def test_the_version_is_the_one_of_the_package() -> None:
    assert version() == VERSION


@pytest.mark.parametrize(("of", "text"), [("0.2.0", "- new\n\n### Tools\n\n- more\n"), ("0.1.0", "The first.\n")])
def test_the_notes_are_the_changelog_s_section_of_the_version(of: str, text: str) -> None:
    assert notes(CHANGELOG, of) == text


@pytest.mark.parametrize("changelog", ["# Changelog\n", "## 0.2.0\n\n## 0.1.0\n\n- old\n"])
def test_a_version_without_notes_is_not_released(changelog: str) -> None:
    with pytest.raises(ValueError, match=r"## 0\.2\.0"):
        notes(changelog, "0.2.0")


def test_the_changelog_has_notes_of_this_version() -> None:
    assert notes((ROOT / "CHANGELOG.md").read_text(), VERSION)


def test_sha256sum_accepts_the_checksums_of_all_artifacts(work: Workspace) -> None:
    (work.out / "a.whl").write_bytes(b"a")
    (work.out / "b.tgz").write_bytes(b"b")

    write_checksums(work)
    write_checksums(work)

    assert (work.out / CHECKSUMS).read_text().startswith(f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS], cwd=work.out, check=True)


def test_provenance_names_artifacts_source_and_builder() -> None:
    environ = {"GITHUB_SERVER_URL": "https://git.example.com", "GITHUB_REPOSITORY": "fish/shoal", "GITHUB_RUN_ID": "7"}
    found = provenance({"a.whl": "00"}, "0.2.0", "abc", environ)

    assert found["subject"] == [{"name": "a.whl", "digest": {"sha256": "00"}}]
    [source] = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "git+https://git.example.com/fish/shoal", "digest": {"gitCommit": "abc"}}
    assert provenance({}, "0.2.0", "", {})["predicate"]["runDetails"]["builder"] == {"id": "local"}


def test_without_an_identity_nothing_is_signed(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIONS_ID_TOKEN_REQUEST_URL", "SIGSTORE_IDENTITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Skipped, match="SIGSTORE_IDENTITY_TOKEN"):
        sign(work)


def test_a_step_that_is_skipped_or_fails_has_a_row_with_the_reason(work: Workspace) -> None:
    def skips() -> None:
        raise Skipped("no builder works")

    def fails() -> None:
        run(["false"])

    def makes() -> None:
        (work.out / "a.whl").write_bytes(b"a" * 20_000)

    table = Table()
    assert table.step(work, "wheels", makes)
    assert not table.step(work, "images", skips)
    assert not table.failed
    assert not table.step(work, "chart", fails)
    assert table.failed
    lines = [line.split() for line in table.text().splitlines()]
    assert lines[1][:3] == ["wheels", "a.whl", "0.02"]
    assert lines[2][:3] == ["images", "skipped:", "no"]
    assert lines[3][1] == "FAILED:"
