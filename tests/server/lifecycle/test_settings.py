"""Settings: sources and error messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from replay_proto.errors import FieldError
from replay_server.process.settings import load_settings

from tests.support.server_process import run_to_its_end

TABLE = """
[[tables]]
name = "acrobot"
capacity = 10
[tables.columns]
done = { dtype = "bool" }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path for a TOML file; no environment variable is set."""
    for name in ("PORT", "CONFIG", "DATA_DIR", "HOST"):
        monkeypatch.delenv(f"REPLAY_SERVER_{name}", raising=False)
    return tmp_path / "server.toml"


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The message printed for invalid settings."""
    with pytest.raises(SystemExit) as end:
        load_settings(flags)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_without_anything_the_defaults_hold(file: Path) -> None:
    settings = load_settings([])
    assert (settings.host, settings.port, settings.data_dir, settings.tables) == ("127.0.0.1", 50051, None, ())
    assert settings.reflection
    assert not settings.exit_with_parent


def test_every_source_has_its_say(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 1\nhost = 'a'\nmax_reply_mb = 1\ndrain_s = 1.5\n")
    monkeypatch.setenv("REPLAY_SERVER_HOST", "b")
    monkeypatch.setenv("REPLAY_SERVER_MAX_MESSAGE_MB", "2")
    settings = load_settings(["--config", str(file), "--max-reply-mb", "3"])
    assert (settings.port, settings.host, settings.max_reply_mb, settings.drain_s) == (1, "b", 3, 1.5)


@pytest.mark.parametrize("form", [["--config={}"], ["--config", "{}"]])
def test_the_file_can_be_named_in_both_forms(file: Path, form: list[str]) -> None:
    file.write_text("port = 7")
    assert load_settings([part.format(file) for part in form]).port == 7


def test_the_last_of_repeated_flags_wins(file: Path) -> None:
    assert load_settings(["--port", "1", "--port", "2", "--health", "--no-health"]).port == 2
    assert not load_settings(["--health", "--no-health"]).health


def test_a_flag_names_the_file_before_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 7")
    other = file.with_name("other.toml")
    other.write_text("port = 8")
    monkeypatch.setenv("REPLAY_SERVER_CONFIG", str(other))
    assert load_settings([]).port == 8
    assert load_settings(["--config", str(file)]).port == 7


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (["--port", "65536"], "port"),
        (["--port", "-1"], "port"),
        (["--port", "many"], "port"),
        (["--max-reply-mb", "0"], "max-reply-mb"),
        (["--max-reply-mb", "2048"], "max-reply-mb"),
        (["--log-level", "loud"], "log-level"),
        (["--drain-s", "-1"], "drain-s"),
        (["--max-streams-per-connection", "3000000000"], "max-streams-per-connection"),
    ],
)
def test_a_flag_out_of_range_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], flags: list[str], setting: str
) -> None:
    assert f"replay-server: --{setting}: input should be " in refusal(capsys, *flags)
    assert f", got {flags[1]!r}\n" in refusal(capsys, *flags)


def test_an_empty_path_is_not_the_current_directory(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As from ``--data-dir "$UNSET"``."""
    assert "--data-dir: expected a path, such as . " in refusal(capsys, "--data-dir", "")
    file.write_text("checkpoint_dir = ''")
    assert "checkpoint_dir: expected a path" in refusal(capsys, "--config", str(file)).replace("-", "_")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("prot = 5", "prot"),
        ("port = 'high'", "port"),
        (TABLE + "colour = 'red'\n", "colour"),
        (TABLE.replace("capacity = 10", "capactiy = 10"), "capactiy"),
        ("[[tables]]\nname = 'x'\n", "columns"),
        ("tables = 5", "tables"),
    ],
)
def test_a_setting_of_the_file_that_cannot_be_used_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], content: str, complaint: str
) -> None:
    file.write_text(content)
    assert complaint in refusal(capsys, "--config", str(file))


def test_a_file_that_cannot_be_read_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--config: expected a TOML file, got '{file}'" in refusal(capsys, "--config", str(file))
    for content in (b"port = ", b"\xff\xfe\x00"):
        file.write_bytes(content)
        assert f"--config: expected a TOML file, got '{file}'" in refusal(capsys, "--config", str(file))


def test_a_variable_that_cannot_be_used_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLAY_SERVER_PORT", "high")
    assert refusal(capsys).endswith(", got 'high' (from the variable REPLAY_SERVER_PORT)\n")
    monkeypatch.delenv("REPLAY_SERVER_PORT")
    monkeypatch.setenv("REPLAY_SERVER_CONFIG", str(file))
    assert refusal(capsys).endswith(": No such file or directory (from the variable REPLAY_SERVER_CONFIG)\n")
    file.write_text("port = 70000")
    assert refusal(capsys).endswith(f", got '70000' (from port in {file})\n")


def test_settings_that_contradict_each_other_are_named_with_their_sources(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLAY_SERVER_TLS_CERT", "a")
    assert refusal(capsys).endswith("got one of them (tls_cert from the variable REPLAY_SERVER_TLS_CERT)\n")
    monkeypatch.setenv("REPLAY_SERVER_TLS_CERT", "")
    file.write_text("durability = 'power'")
    assert refusal(capsys, "--config", str(file)).endswith(f"(durability from durability in {file})\n")


@pytest.mark.parametrize("below", ["", "tables", "tables/kept", "link"])
def test_checkpoints_are_not_written_among_the_tables(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    """The next start would take them for tables."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "link").symlink_to(data / "tables")
    wrong = str(data / below)
    expected = f"checkpoint_dir: expected a directory other than data_dir, outside of '{data}/tables', got '{wrong}'"
    assert expected in refusal(capsys, "--data-dir", str(data), "--checkpoint-dir", wrong)
    load_settings(["--data-dir", str(data), "--checkpoint-dir", str(data / "kept")])


def test_an_empty_variable_is_unset_and_the_file_counts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 7")
    monkeypatch.setenv("REPLAY_SERVER_CONFIG", str(file))
    for name in ("PORT", "DATA_DIR", "HOST", "MAX_BYTES"):
        monkeypatch.setenv(f"REPLAY_SERVER_{name}", " " if name == "HOST" else "")
    settings = load_settings([])
    assert (settings.port, settings.data_dir, settings.host, settings.max_bytes) == (7, None, "127.0.0.1", None)


def test_variables_without_effect_are_named_but_not_those_of_kubernetes(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "DATADIR": "/x",
        "WHATEVER": "1",
        "EMPTY": "",
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "50051",
        "SERVICE_PORT_GRPC": "50051",
        "PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "PORT_50051_TCP_ADDR": "10.0.0.1",
        "OTHER_PORT": "tcp://10.0.0.2:1",
        "PORT": "tcp://10.0.0.1:50051",
    }.items():
        monkeypatch.setenv(f"REPLAY_SERVER_{name}", value)
    settings = load_settings([])
    assert settings.port == 50051
    settings.log_remarks(logging.getLogger())
    told = [record.getMessage() for record in caplog.records]
    prefix = "the variable REPLAY_SERVER_"
    assert [text.removeprefix(prefix).split()[0].split("=")[0] for text in told] == ["DATADIR", "PORT", "WHATEVER"]
    assert "did you mean REPLAY_SERVER_DATA_DIR?" in told[0]
    assert "Kubernetes sets it in each pod for a Service called replay-server" in told[1]


def test_what_is_found_wrong_later_names_the_source_too(file: Path) -> None:
    variables = {"REPLAY_SERVER_DATA_DIR": "/dev/null", "REPLAY_SERVER_DATADIR": "/x"}
    ended = run_to_its_end(environment=variables)
    assert ended.returncode == 1
    warning, error = ended.stderr.splitlines()
    assert "REPLAY_SERVER_DATADIR has no effect" in warning
    assert error.endswith("got '/dev/null': Not a directory (data_dir from the variable REPLAY_SERVER_DATA_DIR)")
    exposed = run_to_its_end(environment={"REPLAY_SERVER_HOST": "0.0.0.0"})
    assert exposed.stderr.endswith("(host from the variable REPLAY_SERVER_HOST)\n")


@pytest.mark.parametrize("value", ["true", "1.5"])
def test_the_capacity_of_a_table_is_a_whole_number(file: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    file.write_text(TABLE.replace("capacity = 10", f"capacity = {value}"))
    assert "--tables.0.capacity: " in refusal(capsys, "--config", str(file))
    file.write_text(TABLE.replace("capacity = 10", "capacity = 1e6"))
    assert load_settings(["--config", str(file)]).tables[0].capacity == 1_000_000


def test_a_table_of_the_file_becomes_a_config(file: Path) -> None:
    given = TABLE.replace("capacity = 10", "capacity = 1_000\nparameters = { alpha = 1 }\nseed = 5")
    file.write_text(given.replace('"bool"', '"bool", shape = [2], mutable = true'))
    (table,) = load_settings(["--config", str(file)]).tables
    config = table.to_config()
    assert (config.name, config.capacity, config.backend, config.seed) == ("acrobot", 1000, "sum_tree", 5)
    assert config.parameters["alpha"] == 1.0
    assert {name: str(column) for name, column in config.schema.items()} == {"done": "bool[2], mutable"}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("capacity = 10", "capacity = 0", "capacity"),
        ('"bool"', '"text"', "dtype"),
        ('"bool"', '"bool", shape = [0]', "shape"),
        ('"acrobot"', '"../up"', "name"),
        ("done =", "_done =", "columns"),
        ("capacity = 10\n", "capacity = 10\nbackend = 'heap'\n", "backend"),
        ("capacity = 10\n", "capacity = 10\nparameters = { beta = 1 }\n", "beta"),
        ("capacity = 10\n", "capacity = 10\nparameters = { alpha = -1 }\n", "alpha"),
        ("capacity = 10\n", "capacity = 10\nseed = -1\n", "seed"),
    ],
)
def test_a_table_of_the_file_that_cannot_be_made_is_named(file: Path, old: str, new: str, field: str) -> None:
    assert old in TABLE
    file.write_text(TABLE.replace(old, new))
    (table,) = load_settings(["--config", str(file)]).tables
    with pytest.raises(FieldError) as error:
        table.to_config()
    assert error.value.field == field
