"""Before a run, tools check that their report document is suitable."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from replay_proto.command_line import new_app, run_app

from tools.faults import soak
from tools.faults.soak import Sample

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "operations" / "reliability.md"
TOO_LITTLE = {
    "soak": ("--minutes", "0.3"),
    "torture": ("--kills", "0"),
    "fuzz": ("--messages", "0"),
    "network_torture": ("--minutes", "0"),
}
"""Flags of a run that is too short to report anything, by tool."""
STEADY = Sample(0.0, 100.0, 60, 12, 0.1, 1.0, 4.0, 0, 0)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A copy of the page in an otherwise empty folder."""
    return Path(shutil.copy(REPORT, tmp_path))


def refuses(tool: str, *flags: str) -> None:
    """Call a tool, and check that it refuses to start."""
    module = importlib.import_module(f"tools.faults.{tool}")
    with pytest.raises(SystemExit, match="2"):
        run_app(new_app(tool, "", module.main), flags)


@pytest.mark.parametrize("tool", TOO_LITTLE)
def test_a_run_without_anything_to_report_does_not_begin(
    report: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, value = TOO_LITTLE[tool]
    refuses(tool, flag, value, "--report", str(report))
    assert f"for {flag}. Must be >" in capsys.readouterr().err
    assert report.read_text() == REPORT.read_text()


@pytest.mark.parametrize("tool", [*TOO_LITTLE, "message_cost"])
def test_a_document_without_the_section_is_refused_before_the_run(
    tmp_path: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "page.md"
    document.write_text("# No section\n")
    refuses(tool, "--report", str(document))
    assert "expected the marks <!-- " in capsys.readouterr().err
    refuses(tool, "--report", str(tmp_path / "absent.md"))
    assert "expected a document" in capsys.readouterr().err


@pytest.mark.parametrize(("memory_mb", "ends_with"), [(100.0, None), (200.0, 1)])
def test_a_soak_writes_its_page_only_once_it_found_nothing(
    report: Path, monkeypatch: pytest.MonkeyPatch, memory_mb: float, ends_with: int | None
) -> None:
    samples = [STEADY] * 10 + [replace(STEADY, minute=2.0, memory_mb=memory_mb)]
    idle = SimpleNamespace(failure=None, stop=lambda: None, address="", kill=lambda: None, log=lambda: "")
    monkeypatch.setattr(soak, "ServerProcess", lambda *_: idle)
    monkeypatch.setattr(soak, "Load", lambda _: idle)
    monkeypatch.setattr(soak, "watch", lambda *_: samples)
    status = None
    try:
        soak.main(report=report)
    except SystemExit as end:
        status = end.code
    assert status == ends_with
    is_written = report.read_text() != REPORT.read_text()
    assert (is_written, report.with_name("soak.png").exists()) == (not ends_with, not ends_with)
