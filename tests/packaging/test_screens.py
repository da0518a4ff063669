"""Pictures of terminal screens."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyte")
from scripts.screens import Terminal

PROGRAM = r"printf 'gone\r\033[1;32mgreen\033[0m and \033[38;5;208morange\033[0m\nsecond line\n'"


def test_a_picture_has_the_texts_and_colors_that_a_terminal_shows(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    terminal = Terminal("sh", str(program))
    terminal.finish()
    terminal.save(tmp_path / "screen.svg")
    terminal.kill()
    picture = (tmp_path / "screen.svg").read_text("utf-8")
    assert "gone" not in picture
    assert "font-face" not in picture
    for text in (">green<", ">orange<", "second&#160;line", "#ff8700"):
        assert text in picture
