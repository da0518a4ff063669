"""Converts Gymnasium spaces to columns, and values of these spaces to rows.

    columns = {
        **columns_from_space(env.observation_space, "obs"),
        **columns_from_space(env.action_space, "action"),
        "reward": Column("float32"),
        **columns_from_space(env.observation_space, "next_obs"),
        "terminated": Column("bool"),
    }
    writer.append(obs=obs, action=action, ...)                  # observations may be nested
    table.insert({**flatten_value("obs", stacked), ...})        # flatten stacked observations

A `Dict` space named ``obs`` becomes the columns ``obs/camera`` and ``obs/speed``; a `Tuple` becomes ``obs/0`` and
``obs/1``. Deeper nesting gives longer names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from replay_proto.errors import FieldError
from replay_proto.schema import SEPARATOR, Column

from replay_client._rows.checks import flat_items, nested_items
from replay_client.errors import InvalidArgumentError

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces in which each value is one array with the space's dtype and shape."""


def columns_from_space(space: gymnasium.Space[Any], name: str) -> dict[str, Column]:
    """Derive the columns for values of a space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or arbitrarily nested Dict and Tuple of these.
        name: name of the column, or prefix of nested ones.

    Returns:
        Columns by name, in the order of the space.

    Raises:
        InvalidArgumentError: values of the space have no fixed dtype and shape, as in Text or Sequence.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Mapping[Any, Any] | tuple[Any, ...] = space.spaces
        columns: dict[str, Column] = {}
        for part_name, part in nested_items(name, parts):
            columns.update(columns_from_space(part, part_name))
        return columns
    if not isinstance(space, _PLAIN) or space.dtype is None or space.shape is None:
        raise InvalidArgumentError.of_field(
            name, "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple", type(space).__name__
        )
    try:
        return {name: Column(space.dtype, space.shape)}
    except FieldError as error:
        raise InvalidArgumentError.of_field(f"{name}.{error.field}", error.expected, error.got) from None


def flatten_value(name: str, value: Any) -> dict[str, Any]:
    """Flatten a value of a space to the columns of `columns_from_space`.

    Args:
        name: as given to `columns_from_space`.
        value: a value from one step of an environment, or stacked values from many steps.

    Returns:
        Arrays by column; a value that is not nested becomes the column ``name``.
    """
    return dict(flat_items(name, value))


def unflatten_value(space: gymnasium.Space[Any], name: str, columns: Mapping[str, Any]) -> Any:
    """Restore a value of a space from columns; the inverse of `flatten_value`.

    Args:
        space: as given to `columns_from_space`.
        name: as given to `columns_from_space`.
        columns: values by column name, such as a `Batch`.

    Raises:
        KeyError: a column is missing.
    """
    if isinstance(space, spaces.Dict):
        return {key: unflatten_value(part, f"{name}{SEPARATOR}{key}", columns) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            unflatten_value(part, f"{name}{SEPARATOR}{index}", columns) for index, part in enumerate(space.spaces)
        )
    return columns[name]
