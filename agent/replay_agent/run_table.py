"""The table of a run: made when it is first needed, and made anew when somebody took it away."""

from __future__ import annotations

import logging
import time

from replay_client import ReplayClient, ReplayError

from replay_agent.environments import EnvironmentInfo
from replay_agent.pacing import Pacer, TableCount
from replay_agent.replay_link import DrawSettings, ReplayLink, TableSpec, link_factory

log = logging.getLogger(__name__)

# How long to wait before another table is made when the last one did not even live to be used.
RETRY_S = 0.2


class RunTable:
    """Keeps a link to the table that has the run's name now."""

    def __init__(
        self,
        client: ReplayClient,
        env: EnvironmentInfo,
        spec: TableSpec,
        draws: DrawSettings,
        pacer: Pacer,
        *,
        lockstep: bool,
    ) -> None:
        """Nothing is made yet.

        Args:
            client: of the replay server.
            env: whose transitions the table holds.
            spec: of the table.
            draws: how batches are drawn.
            pacer: told how far each table stands.
            lockstep: whether to wait for every answer.
        """
        self.spec = spec
        self._client = client
        self._env = env
        self._draws = draws
        self._pacer = pacer
        self._lockstep = lockstep
        self._link: ReplayLink | None = None

    def link(self) -> ReplayLink:
        """A link to the table, which is made or found first if need be.

        Raises:
            TableExistsError: a table of this name has another config.
            ReplayError: one of `TABLE_LOST` or another failure.
        """
        if self._link is None:
            table = self.spec.make(self._client, self._env)
            description = table.describe()
            if description.size:
                log.info("table %s has %d rows already", table.name, description.size)
            self._pacer.attach(description.inserted, description.size)
            self._link = link_factory(lockstep=self._lockstep)(table, self._draws)
        return self._link

    @property
    def uid(self) -> str | None:
        """The uid of the table; None while there is none."""
        return None if self._link is None else self._link.table.uid.hex()

    def catch_up(self, counted: TableCount) -> None:
        """Have the pacer count what the table received since an earlier run counted.

        Raises:
            ReplayError: one of `TABLE_LOST` or another failure.
        """
        description = self.link().table.describe()
        self._pacer.catch_up(counted, description.inserted, description.size)

    def flush(self) -> None:
        """Wait for some seconds until the table has every row appended so far; give up quietly."""
        if self._link is not None:
            self._link.flush()

    def lose(self, error: Exception) -> None:
        """The table is gone: the next `link` is to another one."""
        log.warning("the table is gone, making it anew: %s", error)
        if self._link is None:
            time.sleep(RETRY_S)
        self.close()

    def checkpoint(self, keep: int, timeout_s: float) -> str | None:
        """Have the server write a checkpoint of the table, of a series that has the table's name.

        Args:
            keep: how many of the series stay.
            timeout_s: how long it may take, in seconds.

        Returns:
            The checkpoint's name; None if there is none, which is logged.
        """
        try:
            made = self._client.checkpoint([self.spec.name], series=self.spec.name, keep=keep, timeout_s=timeout_s)
        except ReplayError as error:
            log.warning("the server wrote no checkpoint of the table: %s", error)
            return None
        return made.name

    def drop(self) -> None:
        """Remove the table from the server.

        Raises:
            ReplayError: one of `TABLE_LOST` if it is gone already, or another failure.
        """
        if self._link is not None:
            table = self._link.table
            self.close()
            table.drop()

    def close(self) -> None:
        """Send what is left, as far as the table is still there."""
        if self._link is not None:
            self._link.close()
            self._link = None
