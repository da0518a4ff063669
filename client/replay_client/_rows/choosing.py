"""Chooses some columns of a table: `columns=["obs", "action"]`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from replay_proto.schema import SEPARATOR
from replay_proto.steps import Steps

from replay_client.errors import InvalidArgumentError


def chosen_columns(
    available: Iterable[str], given: Collection[str] | None, masks: Mapping[str, str]
) -> tuple[str, ...] | None:
    """Return the names of chosen columns, in the order of the schema, or None for all columns.

    Args:
        available: names of all columns.
        given: names of columns, or of nested observations, which stand for all of their parts.
        masks: the masks of optional columns, which are chosen with their columns; see `Schema.masks`.

    Raises:
        InvalidArgumentError: a name is unknown, or `given` is not a collection of names.
    """
    if given is None:
        return None
    names = tuple(available)
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidArgumentError.of_field("columns", "a list of names, or None for all columns", repr(given))
    chosen: set[str] = set()
    for name in given:
        found = [each for each in names if each == name or each.startswith(f"{name}{SEPARATOR}")]
        if not found:
            raise InvalidArgumentError.of_field("columns", f"names among {', '.join(names)}", repr(name))
        chosen.update(found)
        chosen.update(masks[each] for each in found if each in masks)
    return tuple(name for name in names if name in chosen)


def chosen_of_steps(steps: Steps, given: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names of chosen columns like `chosen_columns`, for batches of a table of steps.

    A `Mask` is always chosen, because without it, nobody could tell which positions of a sequence hold a step.
    """
    names = chosen_columns(steps.sampled, given, steps.schema.masks)
    if names is None:
        return None
    return tuple(name for name in steps.sampled if name in names or name in steps.masks)
