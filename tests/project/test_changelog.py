"""Changes are told in fragments, and a release folds them into the changelog."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import changelog

OLD = "# Changelog\n\nIntroduction.\n\n## 0.1.0 (2026-01-01)\n\n* First version.\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("how to\n")
    (tmp_path / "CHANGELOG.md").write_text(OLD)
    return tmp_path


def _add(project: Path, name: str, text: str) -> None:
    (project / "changelog.d" / name).write_text(text)


def test_a_release_takes_all_fragments_by_kind_and_deletes_them(project: Path) -> None:
    _add(project, "zebra.fixed.md", "A bug is\ngone.\n")
    _add(project, "apple.added.md", "A command.\n")
    _add(project, "pear.added.md", "Another command.\n")

    assert changelog.main(["0.2.0", "--date", "2026-02-02"], project) == 0

    assert (project / "CHANGELOG.md").read_text() == (
        "# Changelog\n\nIntroduction.\n\n"
        "## 0.2.0 (2026-02-02)\n\n"
        "### Added\n\n* A command.\n* Another command.\n\n"
        "### Fixed\n\n* A bug is gone.\n\n"
        "## 0.1.0 (2026-01-01)\n\n* First version.\n"
    )
    assert [path.name for path in (project / "changelog.d").iterdir()] == ["README.md"]


def test_without_a_version_the_changes_are_only_shown(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _add(project, "apple.added.md", "A command.\n")

    assert changelog.main([], project) == 0

    assert "* A command." in capsys.readouterr().out
    assert (project / "CHANGELOG.md").read_text() == OLD
    assert (project / "changelog.d" / "apple.added.md").exists()


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("apple.md", "A command.", "<slug>.<added|changed|fixed|removed>.md"),
        ("apple.improved.md", "A command.", "<slug>.<added|changed|fixed|removed>.md"),
        ("apple.added.md", " \n", "is empty"),
        ("apple.added.md", "* A command.", "one plain sentence"),
    ],
)
def test_a_bad_fragment_is_named_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, complaint: str
) -> None:
    _add(project, name, text)

    assert changelog.main(["0.2.0"], project) == 1

    complained = capsys.readouterr().err
    assert name in complained
    assert complaint in complained
    assert (project / "CHANGELOG.md").read_text() == OLD
    assert (project / "changelog.d" / name).exists()


def test_a_release_is_written_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _add(project, "apple.added.md", "A command.")

    assert changelog.main(["0.1.0"], project) == 1
    assert "already has 0.1.0" in capsys.readouterr().err


def test_a_release_without_changes_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert changelog.main(["0.2.0"], project) == 1
    assert "nothing to release" in capsys.readouterr().err


@pytest.mark.parametrize("more", [False, True])
def test_a_release_that_was_written_in_advance_gets_its_date_and_what_came_since(
    project: Path, capsys: pytest.CaptureFixture[str], more: bool
) -> None:
    file = project / "CHANGELOG.md"
    file.write_text(OLD.replace("## 0.1.0", "## 0.2.0 (unreleased)\n\nThe first.\n\n## 0.1.0"))
    assert changelog.main(["--notes", "0.2.0rc1"], project) == 0
    assert changelog.main(["--notes", "0.2.0"], project) == 1
    assert "calls 0.2.0 unreleased" in capsys.readouterr().err
    if more:
        _add(project, "apple.added.md", "A command.")

    assert changelog.main(["0.2.0", "--date", "2026-02-03"], project) == 0

    added = "### Added\n\n* A command.\n\n" if more else ""
    assert file.read_text() == OLD.replace(
        "## 0.1.0", f"## 0.2.0 (2026-02-03)\n\nThe first.\n\n{added}## 0.1.0"
    )


def test_release_notes_are_one_section_and_serve_candidates(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert changelog.main(["--notes", "0.1.0"], project) == 0
    assert changelog.main(["--notes", "0.1.0rc2"], project) == 0
    assert capsys.readouterr().out == "* First version.\n" * 2
    assert changelog.main(["--notes", "0.3.0"], project) == 1
    assert "says nothing about 0.3.0" in capsys.readouterr().err


def test_every_fragment_of_the_project_can_be_released() -> None:
    changelog.read_fragments(changelog.ROOT / "changelog.d")
