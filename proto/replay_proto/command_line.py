"""Parses the command lines of all programs, and reads settings from flags, environment variables and TOML files."""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.config import Dict
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from replay_proto.setting_sources import Sources, Variables

_HANDLER: Final = "replay-plain"
_COMPLETE: Final = "utf"
"""Begins the names of the encodings that have all characters."""
_SAME_WIDTH: Final = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉▲▼─━│┃…•·±\u00d7≤≥βε", "_.:-=+*#...####^v--||~**~x<>be")
"""Plain characters for those that the commands draw with. Each replaces one, so that columns stay in line."""
_BOX_DRAWING: Final = range(0x2500, 0x2580)
_BRAILLE: Final = range(0x2800, 0x2900)


def use_any_terminal() -> None:
    """Print plain characters in place of those that standard output and standard error cannot encode."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith(_COMPLETE):
            stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain_character, error.object[error.start : error.end])), error.end


def _plain_character(character: str) -> str:
    plain = character.translate(_SAME_WIDTH)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", character)[:1]  # a letter without its accents
    if plain.isascii():
        return plain
    if ord(character) in _BOX_DRAWING:
        return "+"
    return "*" if ord(character) in _BRAILLE else "?"


MAX_PORT = 65535
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 1
EXIT_UNWRITABLE = 1
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
NONE = "none"
"""The value that unsets a setting, because TOML has no null."""

Source = Callable[[App, tuple[str, ...], ArgumentCollection], None]
"""Supplies values for settings that have none yet; raises CycloptsError."""


class Settings(BaseModel):
    """Settings of a program: each field has a docstring and, for the help page, a `group`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    _sources: Sources = PrivateAttr(default_factory=Sources)
    _remarks: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        return {name: None if _says_none(value) else value for name, value in values.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_empty_path(cls, value: Any, info: ValidationInfo) -> Any:
        """An empty path would mean the current directory, for example after ``--data-dir "$UNSET"``."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if value == "" and Path in (kind, *get_args(kind)):
            raise ValueError("expected a path, such as . for the current directory, got an empty one")
        return value

    def explained(self, message: object) -> str:
        """Add to a message where the settings that it names come from, unless they are from flags or defaults."""
        return self._sources.add_to(str(message), dict(self))

    def log_remarks(self, log: logging.Logger) -> None:
        """Warn of environment variables that have no effect."""
        for remark in self._remarks:
            log.warning("%s", remark)


def check_address(address: str) -> str:
    """Return an address if it is HOST:PORT; raise `ValueError` if it is not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"expected HOST:PORT, such as localhost:50051, got {address!r}")
    return address


def _split(value: Any) -> Any:
    if value is None:
        return None
    words = value if isinstance(value, list | tuple) else [value]
    return tuple(part for word in words for part in (word.split(",") if isinstance(word, str) else [word]))


Address = Annotated[str, AfterValidator(check_address)]
"""HOST:PORT."""
SPLIT = BeforeValidator(_split)
"""Marks fields whose values are given as ``a,b``."""
S = TypeVar("S", bound=Settings)


def group(name: str) -> Parameter:
    """Mark fields that the help page shows under this heading; headings appear in the order of these calls."""
    return Parameter(group=Group.create_ordered(name))


def read_settings(
    settings_class: type[S], program: str, variables: str, arguments: Sequence[str] | None, *later: Source
) -> S:
    """Read settings from flags, then environment variables, then the TOML file named by the setting ``config``.

    Args:
        settings_class: the settings; its docstring is the description on the help page.
        program: name of the command.
        variables: prefix of the environment variables.
        arguments: the command line without the program's name; None: the process's own.
        *later: sources with lower precedence than the file.

    Raises:
        SystemExit: with 2 after printing that a setting is invalid; with 0 after ``--help`` and ``--version``.
    """

    def read(*, settings: S | None = None) -> S:
        return settings or settings_class()

    read.__annotations__["settings"] = Annotated[settings_class | None, Parameter(name="*")]
    app = new_app(program, settings_class.__doc__ or "", default_command=read)
    read_variables, sources = Variables(variables, settings_class.model_fields), Sources()
    app.config = (read_variables, sources, partial(_read_file, sources), *later, sources)
    found: S | None = run_app(app, arguments, sources)
    if found is None:  # The help page or the version was shown.
        sys.exit(0)
    found._sources, found._remarks = sources, tuple(read_variables.remarks)
    return found


def new_app(program: str, description: str, default_command: Callable[..., Any] | None = None) -> App:
    """Create an application with ``--help`` and ``--version``."""
    return App(
        name=program,
        help=description,
        help_format="markdown",
        version=f"{program} {version('replay-service')}",
        default_command=default_command,
        # The last of repeated flags wins, so that scripts can override flags of other scripts.
        default_parameter=Parameter(allow_repeating=True, negative_iterable=""),
        config=_check_whole_numbers,
    )


def _check_whole_numbers(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse fractions for whole numbers, which cyclopts would round."""
    for argument in arguments:
        if int not in (argument.hint, *get_args(argument.hint)):
            continue
        for value in (token.value for token in argument.tokens):
            with suppress(ValueError):  # cyclopts refuses what is no number at all
                if not float(value).is_integer():
                    raise CycloptsError(msg=f"{argument.name}: expected a whole number, got {value!r}")


def run_app(app: App, arguments: Sequence[str] | None = None, sources: Sources | None = None) -> Any:
    """Run the command of a command line, and return its result; None after ``--help`` and ``--version``.

    Messages about invalid settings name their ``sources``.

    Raises:
        SystemExit: with 2 after printing that an argument is invalid; with 1 if nobody reads the output any longer, or
            after printing that standard output cannot be written.
    """
    use_any_terminal()
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        print(end="", flush=True)
        return result
    except BrokenPipeError:  # the other end of the pipe has been closed, for example by `head`
        discard_output()
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        discard_output()
        reason = f"standard output cannot be written: {error.strerror}; redirect it to another place"
        print(f"{app.name[0]}: {reason}", file=sys.stderr)
        sys.exit(EXIT_UNWRITABLE)
    except CycloptsError as error:
        for fault in _faults_of(error, sources or Sources()):
            print(f"{app.name[0]}: {fault}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def discard_output() -> None:
    """Let what is still printed go nowhere, after a failed write: Python flushes the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def given(arguments: ArgumentCollection, setting: str) -> str | None:
    """Return the value of a setting in the sources read so far, or None if none has it."""
    tokens = arguments[f"--{setting}"].tokens
    return tokens[0].value if tokens else None


def _says_none(value: Any) -> bool:
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return isinstance(value, str) and value.lower() == NONE


def _read_file(sources: Sources, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    path = given(arguments, "config")
    if path is None:
        return
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CycloptsError(
            msg=f"--config: expected a TOML file, got {path!r}: {reason}{sources.of('config')}"
        ) from error
    Dict(values, source=path)(app, commands, arguments)


def _faults_of(error: CycloptsError, sources: Sources) -> Iterator[str]:
    """Yield a message per error, with the expected and the given value, and where that comes from."""
    if not isinstance(error.__cause__, ValidationError):
        yield str(error)
        return
    for found in error.__cause__.errors(include_url=False):
        name = ".".join(map(str, found["loc"])).replace("_", "-")
        message = found["msg"].removeprefix("Value error, ")
        if not name:
            yield sources.add_to(message, found["input"] if isinstance(found["input"], dict) else {})
            continue
        got = "" if found["type"] == "value_error" else f", got {found['input']!r}"
        yield f"--{name}: {message[:1].lower()}{message[1:]}{got}{sources.of(str(found['loc'][0]))}"
