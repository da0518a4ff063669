"""Settings of all commands: sources of values, and a help page in groups."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from replay_agent import __version__

GROUP, METAVAR = "group", "metavar"
# Unsets a value: TOML has no null, and users must be able to unset a preset.
NONE = "none"
MAX_PORT = 65535
# Placeholders for values in the help page by type; argparse chooses the others.
METAVARS: Mapping[str, str] = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "tuple[int,...]": "N,N"}


class CommandSettings(BaseSettings):
    """Settings of a command: flags, then the environment, then a TOML file. A subclass names prefix and program."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        enable_decoding=False,  # of JSON: lists are words with commas, see split_list
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        allow_inf_nan=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment, TOML file, then sources of a subclass; flags precede all of them."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls), *cls.later_sources(settings_cls)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        """The word ``none`` unsets an optional setting."""
        if not isinstance(values, Mapping):
            return values
        return {
            name: None if _says_none(value) and _may_be_none(cls.model_fields.get(name)) else value
            for name, value in values.items()
        }

    @classmethod
    def later_sources(cls, settings_cls: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources of values that no other source has."""
        return ()


Settings = TypeVar("Settings", bound=CommandSettings)


def option(default: Any, group: str, description: str, metavar: str | None = None, **constraints: Any) -> Any:
    """A documented field of a settings class, shown under a group's heading in the help page.

    Args:
        default: value where none is given.
        group: the heading.
        description: what it does, with its unit.
        metavar: placeholder for the value in the help page; None: by type.
        **constraints: of pydantic, such as ``ge``.
    """
    return Field(default, description=description, json_schema_extra={GROUP: group, METAVAR: metavar}, **constraints)


def load(settings_class: type[Settings], arguments: Sequence[str]) -> Settings:
    """Read settings from flags, the environment and the TOML file that one of these names.

    Args:
        settings_class: has a field ``config`` and an environment prefix.
        arguments: the command line, without the program's name.

    Raises:
        pydantic.ValidationError: names each invalid setting.
        SettingsError: the TOML file cannot be read.
        SystemExit: after ``--help``, or for an unknown flag.
    """
    prefix = settings_class.model_config.get("env_prefix", "")
    config_file = _config_file(arguments, prefix)

    class FromFile(settings_class):  # type: ignore[valid-type, misc]
        __doc__ = settings_class.__doc__
        model_config = SettingsConfigDict(toml_file=config_file)

    source = _grouped_source(FromFile)
    loaded: Settings = CliApp.run(FromFile, cli_args=list(arguments), cli_settings_source=source)
    return loaded


def split_list(value: Any) -> Any:
    """Split lists that are one word, as in environment variables and flags: ``a,b``."""
    if isinstance(value, str):
        return tuple(value.split(","))
    if isinstance(value, list | tuple):
        return tuple(part for item in value for part in (item.split(",") if isinstance(item, str) else (item,)))
    return value


def _says_none(value: Any) -> bool:
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return isinstance(value, str) and value.lower() == NONE


def _may_be_none(field: FieldInfo | None) -> bool:
    return field is not None and type(None) in get_args(field.annotation)


def check_address(value: str | None) -> str | None:
    """Accept HOST:PORT.

    Raises:
        ValueError: the value is not HOST:PORT.
    """
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"expected HOST:PORT, such as localhost:50051, got {value!r}")
    return value


def explain(error: ValidationError | SettingsError) -> str:
    """Say which settings are invalid and why, without the library's own vocabulary."""
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for problem in error.errors(include_url=False):
        name = "-".join(str(part) for part in problem["loc"]).replace("_", "-")
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"--{name}: {message} (got {problem['input']!r})" if name else message)
    return "\n".join(lines)


def _config_file(arguments: Sequence[str], env_prefix: str) -> Path | None:
    """The TOML file, which must be known before settings are loaded."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=os.environ.get(f"{env_prefix}CONFIG"))
    found = parser.parse_known_args(arguments)[0].config
    if found is None:
        return None
    path = Path(found)
    if not path.is_file():
        raise SettingsError(f"config: expected a TOML file, got {str(path)!r}, which does not exist")
    return path


def _grouped_source(settings_class: type[CommandSettings]) -> CliSettingsSource[Any]:
    """A source of flags whose help page has a heading for each group of fields."""
    program = settings_class.model_config.get("cli_prog_name")
    # Abbreviated flags would change their meaning as flags are added.
    parser = argparse.ArgumentParser(
        prog=program, usage="%(prog)s [--flag value ...]", description=settings_class.__doc__, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    fields = {f"--{name.replace('_', '-')}": field for name, field in settings_class.model_fields.items()}
    headings: dict[str, Any] = {}

    def add_argument(_: Any, *flags: str, **details: Any) -> Any:
        field = fields[flags[0]]
        group = _extra(field, GROUP) or "options"
        if group not in headings:
            headings[group] = parser.add_argument_group(group)
        return headings[group].add_argument(*flags, **_readable(field, details))

    return CliSettingsSource(settings_class, root_parser=parser, add_argument_method=add_argument)


def _extra(field: FieldInfo, key: str) -> str | None:
    """What `option` noted about a field."""
    extra = field.json_schema_extra
    value = extra.get(key) if isinstance(extra, dict) else None
    return None if value is None else str(value)


def _readable(field: FieldInfo, details: dict[str, Any]) -> dict[str, Any]:
    """Details for argparse with short stand-ins for values, and without defaults that say nothing."""
    given, of_type = _extra(field, METAVAR), details.get("metavar")
    if isinstance(of_type, str):
        details["metavar"] = given or METAVARS.get(of_type, of_type)
    description = field.description or ""
    default = "" if field.default is None else f" (default: {_shown(field.default)})"
    return {**details, "help": f"{description}{default}".replace("%", "%%")}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)
