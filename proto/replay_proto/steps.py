"""Describes tables of steps: the items that they draw, and the columns that clients derive from the stored ones.

    columns = {
        "frame": Column("uint8", (84, 84), sampled=False),
        "reward": Column("float32", sampled=False),
        "obs": Stack("frame", 4),
        "next_obs": Stack("frame", 4, ahead=True),
        "n_return": Return("reward"),
    }
    steps = Steps.of(columns, Transitions(n_step=3, gamma=0.99))

Writers store each step of an episode once. A draw chooses steps by priority. Each of these steps is the anchor of a
window of consecutive steps, from which the client computes either a transition with its n-step return (`Transitions`),
or a sequence (`Sequences`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from replay_proto.errors import FieldError
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

MAX_WINDOW: Final = 4096
"""Maximum rows of a window."""
Padding = Literal["zero", "repeat"]
"""What a stack has at positions before an episode's first step: zeros, or that step's value."""


@dataclass(frozen=True)
class Stack:
    """The values of a column at consecutive steps, oldest first: ``dtype[count, *shape]``, or ``[*shape]`` for one."""

    of: str
    """The stored column."""
    count: int
    """Number of steps, at least 1."""
    padding: Padding = "repeat"
    """What the stack has at positions before the episode's first step. By default, it repeats the first step's value,
    as Gymnasium's `FrameStackObservation` does."""
    ahead: bool = False
    """False: the stack ends at the anchor. True, only with `Transitions`: n steps later, or at the episode's end."""


def Next(of: str) -> Stack:  # noqa: N802 - used like the classes beside it
    """The value of a column n steps later, or at the episode's end. Only with `Transitions`."""
    return Stack(of, 1, "zero", ahead=True)  # a single value needs no padding


@dataclass(frozen=True)
class Return:
    """The n-step return: the sum of ``gamma**i * value`` over n steps from the anchor on. Only with `Transitions`."""

    of: str
    """The stored column, of a floating-point dtype. The return has the same dtype."""


@dataclass(frozen=True)
class Discount:
    """The factor by which a target multiplies the value of the next observation, as float32.

    With `Transitions`, it is ``gamma**k`` if the return sums k steps; with `Sequences`, ``gamma`` at each step. It is 0
    if the next observation is a terminal state.
    """


@dataclass(frozen=True)
class Mask:
    """Which positions of a sequence hold a step, as bool. Only with `Sequences`."""


Derived: TypeAlias = Stack | Return | Discount | Mask
"""A column of batches that clients compute from stored columns."""


@dataclass(frozen=True)
class Transitions:
    """Draws single steps, each with its n-step return and the observation n steps later."""

    n_step: int = 1
    """n, at least 1. Steps near the end of an episode use as many steps as are left."""
    gamma: float = 0.99
    """Discount factor, 0 to 1."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check_numbers(self)


@dataclass(frozen=True)
class Sequences:
    """Draws sequences of steps: columns have the shape ``[burn_in + length, *shape]``.

    The anchor of a sequence is the first step to learn from, at position ``burn_in``. Positions before the beginning of
    an episode are zero. So are those after its end, except that the first one contains the final observation.
    ``Sequences(length=L, period=L)`` draws whole episodes of up to L - 1 steps with their final observation, and slices
    of longer ones.

    With ``padded=False``, positions without a row are left out: columns have the shape ``[total, *shape]``, and
    `Batch.offsets` says where each sequence begins.
    """

    length: int
    """Number of positions from the anchor on, at least 1."""
    burn_in: int = 0
    """Number of positions before the anchor, at least 0."""
    period: int = 1
    """Steps from one anchor to the next, 1 to `length`. The first anchor of an episode is its first step."""
    gamma: float = 0.99
    """Discount factor, 0 to 1."""
    eta: float = 0.9
    """How priorities of steps become that of a sequence: ``eta * max + (1 - eta) * mean`` over its steps from the
    anchor on (Kapturowski et al. 2019, section 2.3). 1 is the largest, 0 the mean."""
    padded: bool = True
    """Whether all sequences of a batch have the same number of positions. False: only on one server."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check_numbers(self)
        if not _is_fraction(self.eta):
            raise FieldError("steps.eta", "a number from 0 to 1", repr(self.eta))
        if not _is_flag(self.padded):
            raise FieldError("steps.padded", "True or False", repr(self.padded))


Item: TypeAlias = Transitions | Sequences
"""The kind of items that a table of steps draws, with its parameters."""


class WindowShape(NamedTuple):
    """The rows of a window, counted from its anchor."""

    forward: int
    """Number of rows after the anchor; fewer if the episode ends earlier."""
    backward: int
    """Number of rows before the anchor; fewer if the episode begins later."""
    period: int = 1
    """Steps from one anchor to the next. The first anchor of an episode is its first step."""

    @property
    def rows(self) -> int:
        """Maximum rows of a window."""
        return self.backward + 1 + self.forward

    def most_drawable(self, capacity: int) -> int:
        """Return the maximum number of drawable steps among ``capacity`` rows.

        The newest row is not drawable, because windows have rows after the anchor. If the period is above 1, the row
        after an anchor is never an anchor, so at most half of the rows are drawable, as with episodes of one step.
        """
        return capacity - 1 if self.period == 1 else capacity // 2


@dataclass(frozen=True)
class Steps:
    """The definition of a table of steps: its stored columns, its derived columns, and the items that it draws."""

    item: Item
    """Transitions or sequences."""
    derived: Mapping[str, Derived] = field(hash=False)
    """Columns that are computed from drawn windows, by name."""
    schema: Schema = field(repr=False)
    """The stored columns."""

    def __post_init__(self) -> None:
        """Check that the item, the stored columns and the derived columns are valid together."""
        if not isinstance(self.item, get_args(Item)):
            raise FieldError("steps", "Transitions or Sequences", repr(self.item))
        for name, column in self.derived.items():
            for problem in self._problems(column):
                raise FieldError(f"columns.{name}{problem[0]}", *problem[1:])
        for name, stored in self.schema.items():
            if stored.at == "start" and not (self.is_sequences and stored.sampled):
                raise FieldError(f"columns.{name}.at", "'step', except in sampled columns of Sequences", "'start'")
        for name in self.derived.keys() & self.schema.keys():
            raise FieldError(f"columns.{name}", "a name used once", "it again")
        Schema({**self.schema, **dict.fromkeys(self.derived, Column("bool"))})  # checks the names
        if not any(column.sampled for column in self.schema.values()) and not self.derived:
            raise FieldError("columns", "at least one that is sampled or derived", "none")
        if self.window.rows > MAX_WINDOW:
            raise FieldError("steps", f"windows of at most {MAX_WINDOW} rows", f"{self.window.rows}")

    @property
    def is_sequences(self) -> bool:
        """Whether the table draws sequences."""
        return isinstance(self.item, Sequences)

    @property
    def is_ragged(self) -> bool:
        """Whether the table draws sequences without padding."""
        return isinstance(self.item, Sequences) and not self.item.padded

    @cached_property
    def window(self) -> WindowShape:
        """The shape of its windows."""
        stacked = max((column.count - 1 for column in self.derived.values() if isinstance(column, Stack)), default=0)
        if isinstance(self.item, Transitions):
            return WindowShape(self.item.n_step, stacked)
        # The row after the last position says whether the step there leads to a terminal state.
        return WindowShape(self.item.length, self.item.burn_in + stacked, self.item.period)

    @cached_property
    def carried(self) -> Mapping[str, Column]:
        """Stored columns that a reply contains: the sampled columns, and the sources of derived columns."""
        return self.carried_for(self.sampled)

    @cached_property
    def masks(self) -> Collection[str]:
        """Names of columns that say which positions of a sequence hold a step."""
        return {name for name, column in self.derived.items() if isinstance(column, Mask)}

    def carried_for(self, names: Collection[str]) -> Mapping[str, Column]:
        """Return the stored columns that a reply needs for these columns of a batch."""
        derived = [column for name, column in self.derived.items() if name in names]
        sources = {column.of for column in derived if isinstance(column, Stack | Return)}
        return {name: column for name, column in self.schema.items() if name in names or name in sources}

    @cached_property
    def sampled(self) -> Mapping[str, Column]:
        """The columns of a batch by name, each with its dtype and shape: of one item or, without padding, position."""
        item = self.item
        along = () if isinstance(item, Transitions) or not item.padded else (item.burn_in + item.length,)
        columns = {
            name: Column(
                column.dtype, (*(along if column.at == "step" else ()), *column.shape), optional=column.optional
            )
            for name, column in self.schema.items()
            if column.sampled
        }
        return columns | {name: self._value_of(column, along) for name, column in self.derived.items()}

    def _value_of(self, column: Derived, along: tuple[int, ...]) -> Column:
        match column:
            case Stack():
                source = self.schema[column.of]
                stacked = () if column.count == 1 else (column.count,)
                return Column(source.dtype, (*along, *stacked, *source.shape))
            case Return():
                return Column(self.schema[column.of].dtype, self.schema[column.of].shape)
            case Discount():
                return Column("float32", along)
            case Mask():
                return Column("bool", along)

    def _problems(self, column: Derived) -> Iterator[tuple[str, str, str]]:
        """Yield the faults of a derived column: the field, what was expected, and what was given."""
        if isinstance(column, Mask) and not self.is_sequences:
            yield "", "no Mask with Transitions, whose steps are all real", "Mask"
        if isinstance(column, Return) and self.is_sequences:
            yield "", "no Return with Sequences, whose rewards are drawn step by step", "Return"
        if not isinstance(column, Stack | Return):
            return
        source = self.schema.get(column.of) if isinstance(column.of, str) else None
        if source is None:
            yield ".of", f"a stored column ({', '.join(self.schema)})", repr(column.of)
        elif source.at != "step":
            yield ".of", "a column with a value of every step", f"{column.of!r}, at {source.at!r}"
        elif isinstance(column, Return) and source.dtype.kind != "f":
            yield ".of", "a column of a floating-point dtype", f"{column.of!r}, {source}"
        if isinstance(column, Stack):
            if not _is_whole(column.count) or not 1 <= column.count <= MAX_WINDOW:
                yield ".count", f"a whole number of 1 to {MAX_WINDOW}", repr(column.count)
            if column.padding not in get_args(Padding):
                yield ".padding", "'zero' or 'repeat'", repr(column.padding)
            if not _is_flag(column.ahead):
                yield ".ahead", "True or False", repr(column.ahead)
            if column.ahead and self.is_sequences:
                yield ".ahead", "False with Sequences", "True"

    @classmethod
    def of(cls, columns: Mapping[str, Column | Derived], item: Item) -> Steps:
        """Separate stored from derived columns, and check both."""
        derived = {name: column for name, column in columns.items() if isinstance(column, get_args(Derived))}
        stored = {name: column for name, column in columns.items() if name not in derived}
        return cls(item, derived, Schema(stored))  # type: ignore[arg-type]  # Schema refuses anything else

    def to_proto(self) -> replay_pb2.Steps:
        """Convert the item to the protobuf message."""
        if isinstance(self.item, Transitions):
            return replay_pb2.Steps(gamma=self.item.gamma, transitions=replay_pb2.Transitions(n_step=self.item.n_step))
        sequences = replay_pb2.Sequences(
            length=self.item.length,
            burn_in=self.item.burn_in,
            period=self.item.period,
            eta=self.item.eta,
            unpadded=not self.item.padded,
        )
        return replay_pb2.Steps(gamma=self.item.gamma, sequences=sequences)

    def columns_to_proto(self) -> list[replay_pb2.Column]:
        """Convert all columns to protobuf messages, stored ones first."""
        derived = [replay_pb2.Column(name=name, derived=_derived_to_proto(c)) for name, c in self.derived.items()]
        return self.schema.to_proto(of_steps=True) + derived

    @classmethod
    def from_proto(cls, steps: replay_pb2.Steps, columns: Iterable[replay_pb2.Column]) -> Steps:
        """Read and check what a table draws, and its columns."""
        stored, derived = [], {}
        for column in columns:
            if column.WhichOneof("source") != "derived":
                stored.append(column)
            elif column.name in derived:
                raise FieldError(f"columns.{column.name}", "a name used once", "it again")
            else:
                derived[column.name] = _derived_from_proto(column)
        return cls(_item_from_proto(steps), derived, Schema.from_proto(stored, of_steps=True))

    def to_json(self) -> dict[str, Any]:
        """Convert to a manifest's JSON, without the stored columns."""
        return {
            "item": {"kind": type(self.item).__name__, **vars(self.item)},
            "derived": {name: {"kind": type(c).__name__, **vars(c)} for name, c in self.derived.items()},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], schema: Schema) -> Steps:
        """Read the result of `to_json`; a `KeyError` or `TypeError` means a missing or unknown field."""
        derived = {name: _of_kind(column, get_args(Derived)) for name, column in stored["derived"].items()}
        return cls(_of_kind(stored["item"], get_args(Item)), derived, schema)


def _check_numbers(item: Item) -> None:
    if not _is_fraction(item.gamma):
        raise FieldError("steps.gamma", "a number from 0 to 1", repr(item.gamma))
    least = {"n_step": 1, "length": 1, "burn_in": 0, "period": 1}
    most = {"period": item.length if isinstance(item, Sequences) else 1}
    for name in (each.name for each in fields(item) if each.name in least):
        value = getattr(item, name)
        if not _is_whole(value) or not least[name] <= value <= most.get(name, MAX_WINDOW):
            raise FieldError(
                f"steps.{name}", f"a whole number of {least[name]} to {most.get(name, MAX_WINDOW)}", repr(value)
            )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and bool(0.0 <= value <= 1.0)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _derived_to_proto(column: Derived) -> replay_pb2.DerivedColumn:
    match column:
        case Stack():
            return replay_pb2.DerivedColumn(
                stack=replay_pb2.Stack(
                    of=column.of, count=column.count, repeats=column.padding == "repeat", ahead=column.ahead
                )
            )
        case Return():
            return replay_pb2.DerivedColumn(n_step_return=replay_pb2.Return(of=column.of))
        case Discount():
            return replay_pb2.DerivedColumn(discount=replay_pb2.Discount())
        case Mask():
            return replay_pb2.DerivedColumn(mask=replay_pb2.Mask())


def _derived_from_proto(column: replay_pb2.Column) -> Derived:
    match column.derived.WhichOneof("kind"):
        case "stack":
            stack = column.derived.stack
            return Stack(stack.of, stack.count, "repeat" if stack.repeats else "zero", stack.ahead)
        case "n_step_return":
            return Return(column.derived.n_step_return.of)
        case "discount":
            return Discount()
        case "mask":
            return Mask()
        case _:
            raise FieldError(
                f"columns.{column.name}.derived",
                "stack, n_step_return, discount or mask",
                "a kind unknown to this version",
            )


def _item_from_proto(steps: replay_pb2.Steps) -> Item:
    match steps.WhichOneof("item"):
        case "transitions":
            return Transitions(steps.transitions.n_step, steps.gamma)
        case "sequences":
            item = steps.sequences
            return Sequences(item.length, item.burn_in, item.period, steps.gamma, item.eta, not item.unpadded)
        case _:
            raise FieldError("steps.item", "transitions or sequences", "a kind unknown to this version")


def _of_kind(stored: Mapping[str, Any], kinds: Iterable[type[Any]]) -> Any:
    arguments = dict(stored)
    kind = arguments.pop("kind")
    return {each.__name__: each for each in kinds}[kind](**arguments)
