"""Converts Gymnasium spaces to columns, and values of these spaces to rows.

    columns = transition_columns(env)                           # for a table of steps
    columns = {                                                 # for a table of rows
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

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from replay_proto.errors import FieldError
from replay_proto.schema import SEPARATOR, Column
from replay_proto.steps import Derived, Discount, Next, Return

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


def transition_columns(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> dict[str, Column | Derived]:
    """Derive the columns of a table of steps from which `Transitions` of an environment are drawn.

    Args:
        env: its observations and actions have spaces as for `columns_from_space`.

    Returns:
        Columns by name: ``obs``, ``action`` and ``reward``, which `RecordSteps` writes, and those of
        `derived_of_transitions`. The rewards of single steps are not sampled.

    Raises:
        InvalidArgumentError: as for `columns_from_space`.
    """
    if isinstance(env, VectorEnv):
        obs, action = env.single_observation_space, env.single_action_space
    else:
        obs, action = env.observation_space, env.action_space
    columns = columns_from_space(obs, "obs")
    return {
        **columns,
        **columns_from_space(action, "action"),
        "reward": Column("float32", sampled=False),
        **derived_of_transitions(columns),
    }


def derived_of_transitions(columns: Iterable[str]) -> dict[str, Derived]:
    """Return the derived columns of a transition.

    Args:
        columns: the names of columns, among them those of the observation: ``obs``, or nested below it.

    Returns:
        Columns by name: ``next_obs`` for each column of the observation, ``n_return`` and ``discount``.
    """
    next_obs = {f"next_{each}": Next(each) for each in columns if each.split(SEPARATOR)[0] == "obs"}
    return {**next_obs, "n_return": Return("reward"), "discount": Discount()}


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
