"""Raw results on disk: read back, never mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.results import ResultFile, ResultsError, hold_to


def numbers(path: Path) -> ResultFile[int]:
    return ResultFile(path, ["number"], lambda row: int(row["number"]), lambda number: {"number": number})


def test_results_are_appended_and_read_back_in_order(tmp_path: Path) -> None:
    file = numbers(tmp_path / "n.csv")
    assert file.read() == []
    file.append([3, 1])
    numbers(file.path).append([2])
    assert numbers(file.path).read() == [3, 1, 2]
    assert file.path.read_text() == "number\n3\n1\n2\n"


def test_a_line_that_was_not_written_to_its_end_is_cut_off(tmp_path: Path) -> None:
    file = numbers(tmp_path / "n.csv")
    file.path.write_text("number\n3\n17")
    assert file.read() == [3]
    file.append([4])
    assert file.read() == [3, 4]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = numbers(tmp_path / "n.csv")
    file.path.write_text("letter\na\n")
    with pytest.raises(ResultsError, match=r"expected the columns number .* got letter"):
        file.read()
    file.path.write_text("number\na\n")
    with pytest.raises(ResultsError, match="line 2 of"):
        file.read()


def test_results_of_other_conditions_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "conditions.json"
    hold_to(path, {"alpha": 0.6, "sizes": (1, 2)})
    hold_to(path, {"alpha": 0.6, "sizes": (1, 2)})
    with pytest.raises(ResultsError, match=r"results with alpha 0.6, expected 0.7: choose another --out"):
        hold_to(path, {"alpha": 0.7, "sizes": (1, 2)})
