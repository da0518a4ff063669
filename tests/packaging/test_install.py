"""Environments are installed from where pip is configured to."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.install import options_of, pip_settings


def test_uv_is_told_what_the_files_and_variables_of_pip_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://in.file/simple\nfind-links = /one /other\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    from_file = list(options_of(pip_settings()))
    assert from_file == ["--default-index=https://in.file/simple", "--find-links=/one", "--find-links=/other"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://in.variable/simple")
    assert list(options_of(pip_settings())) == ["--default-index=https://in.variable/simple", *from_file[1:]]
    assert list(options_of({})) == []
