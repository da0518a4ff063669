"""Leases of tables, for calls that await something between two looks at a table.

    lease = catalog.lease("cartpole", uid)
    await lease.admission.draw(caller, 256, wait_s)
    batches = lease.table.draw_at(draw, points)     # raises if the table was dropped in between

A table that a call remembers may be dropped, replaced or reset while the call awaits something. A lease notices.
"""

from __future__ import annotations

from replay_server import errors
from replay_server.flow.admission import Admission
from replay_server.table.table import Table


class Lease:
    """A call's hold on a table."""

    __slots__ = ("_admission", "resets")

    def __init__(self, admission: Admission) -> None:
        """Hold the table of these lines."""
        self._admission = admission
        self.resets = admission.table.resets
        """Number of resets of the table when the lease began."""

    @property
    def admission(self) -> Admission:
        """The table's lines.

        Raises:
            RequestError: TABLE_NOT_FOUND or TABLE_REPLACED if the table was dropped.
        """
        if self._admission.gone is not None:
            raise self._admission.gone()
        return self._admission

    @property
    def table(self) -> Table:
        """The table; raises like `admission`."""
        admission = self._admission
        if admission.gone is not None:
            raise admission.gone()
        return admission.table

    @property
    def is_unchanged(self) -> bool:
        """Whether the table was neither dropped nor reset since the lease began."""
        return self._admission.gone is None and self._admission.table.resets == self.resets

    @property
    def unchanged(self) -> Table:
        """The table, unless it was reset since the lease began.

        Raises:
            RequestError: TABLE_RESET, or as for `admission`.
        """
        admission = self._admission
        if admission.gone is not None:
            raise admission.gone()
        if admission.table.resets != self.resets:
            raise errors.table_reset(admission.table.name)
        return admission.table
