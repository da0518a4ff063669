"""Child processes of the code under test, forked from processes that have loaded them; see `warm_program`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from replay_proto.child_process import start_module

from tests.support.warm_program import ACTOR, AGENT, SERVER, TRAIN, ForkedProcess, warm_program

FORKED = {
    "replay_server": (SERVER,),
    "replay_agent.commands.replay_train": (AGENT, TRAIN),
    "replay_agent.commands.replay_actor": (AGENT, ACTOR),
}
"""Modules that tests start, and the programs that they fork instead, with the first arguments of these."""


def fork_module(
    module: str,
    arguments: Sequence[str],
    log_path: Path,
    *,
    pipe_output: bool,
    environment: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> subprocess.Popen[str] | ForkedProcess:
    """Like `start_module`, but fork the program if that is equivalent."""
    variables = os.environ if environment is None else environment
    program, *first = FORKED[module]
    warm = warm_program(program)
    if not warm.can_fork(variables):
        return start_module(
            module, arguments, log_path, pipe_output=pipe_output, environment=environment, keep_open=keep_open
        )
    with log_path.open("a") as log:
        return warm.start(
            [*first, *arguments],
            variables,
            subprocess.PIPE,
            log.fileno(),
            subprocess.PIPE if pipe_output else log.fileno(),
            new_session=True,
            keep_open=keep_open,
        )
