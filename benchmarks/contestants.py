"""Measures contestants in turn, one window each per round, so that other load affects them alike."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

WINDOW_S = 5.0
ROUNDS = 5
WARM_UP_S = 1.0
REVERB: Final = "Reverb 0.14"

Window = Callable[[float], float]
"""Takes a number of seconds, measures steps for that long, and returns microseconds per step."""

_SCRIPTS = Path(__file__).parent / "peers"


def take_turns(
    contestants: Mapping[str, Window],
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
    warm_up_s: float = WARM_UP_S,
) -> dict[str, list[float]]:
    """Measure all contestants in turn.

    Returns:
        Microseconds per step in each round, by name.
    """
    for window in contestants.values():
        window(warm_up_s)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, window in contestants.items():
            times[name].append(window(window_s))
    return times


class Peer:
    """A peer in a separate process and environment."""

    def __init__(self, stack: ExitStack, python: Path, script: str, *arguments: str) -> None:
        """Start the peer, and wait until it is ready. When the stack is closed, the peer's input ends and it exits.

        Raises:
            RuntimeError: the peer exits before it is ready.
        """
        command = [str(python), str(_SCRIPTS / script), *arguments]
        self._process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        self.facts: dict[str, float] = json.loads(self._answer())

    def __call__(self, window_s: float) -> float:
        """Return microseconds per step in a window of this many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{window_s}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended")
        return line


def start_peers(stack: ExitStack, workload: str, folder: Path) -> dict[str, Peer]:
    """Start the peers installed in ``folder``, and the bare TCP round trip."""
    peers = {"bare TCP round trip": Peer(stack, Path(sys.executable), "tcp_peer.py", workload)}
    if (python := folder / "cpprb" / "bin" / "python").exists():
        peers["cpprb 11, in process"] = Peer(stack, python, "cpprb_peer.py", workload)
    return peers | start_reverb(stack, workload, folder, "transitions")


def start_reverb(
    stack: ExitStack, workload: str, folder: Path, storage: Literal["transitions", "steps"]
) -> dict[str, Peer]:
    """Start Reverb if it is installed in ``folder``. It stores whole transitions, or steps to which its items refer."""
    python = folder / "reverb" / "bin" / "python"
    if not python.exists():
        return {}
    return {REVERB: Peer(stack, python, "reverb_peer.py", workload, str(_free_port()), storage)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
