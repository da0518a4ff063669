"""Settings of `python -m experiments.cliffwalk`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import MinLen
from pydantic import Field
from replay_proto.command_line import SPLIT, Address, Settings, group

from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.replays import Method
from experiments.cliffwalk.walk import MIN_STATES

WHAT = group("what is run")
WHERE = group("where")
MAX_STATES = 20
MANY_STATES = 14
"""With at least this many states, runs are long, so fewer seeds are run."""
Length = Annotated[int, Field(ge=MIN_STATES, le=MAX_STATES)]


class CliffwalkSettings(Settings):
    """Count how many updates Q-learning needs on the Blind Cliffwalk with different ways to choose transitions.

    Without --server it starts a replay server. If started again, it resumes where it stopped.
    """

    states: Annotated[tuple[Length, ...], MinLen(1), SPLIT, WHAT] = tuple(range(MIN_STATES, 17))
    """lengths of the walk, such as 2,4,8"""
    methods: Annotated[tuple[Method, ...], SPLIT, WHAT] = tuple(Method)
    """ways to choose transitions, from uniform,oracle,greedy,proportional,rank"""
    representations: Annotated[tuple[Representation, ...], SPLIT, WHAT] = tuple(Representation)
    """representations of the values: tabular,linear"""
    seeds: Annotated[int, WHAT] = Field(10, ge=1)
    """seeds 0, 1, ... of each combination"""
    large_seeds: Annotated[int, WHAT] = Field(3, ge=1)
    """maximum seeds with 14 or more states"""
    max_run_s: Annotated[float, WHAT] = Field(900.0, gt=0)
    """seconds after which a run is aborted; its updates are plotted as a lower bound"""
    server: Annotated[Address | None, WHERE] = None
    """running replay server; default: start one"""
    out: Annotated[Path, WHERE] = Path("runs/cliffwalk")
    """directory for results and picture"""
    config: Annotated[Path | None, WHERE] = None
    """TOML file with these settings"""

    def seeds_of(self, states: int) -> range:
        """Return the seeds for a walk with this many states."""
        return range(self.seeds if states < MANY_STATES else min(self.seeds, self.large_seeds))
