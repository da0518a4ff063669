"""A real learner with TLS and tokens on its port, and an actor as the bystander."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from replay_proto.v1 import learner_pb2

from tests.attacks.arena import Arena, remove
from tests.attacks.attack import Target, bearer
from tests.attacks.bystander import OFTEN_S, SLOWLY_S, Bystander
from tests.support.access import MINE, WRITE, Authority, write_usual_tokens
from tests.support.deadlines import wait_until
from tests.support.server_process import server_environment

LEARNER: Final = "/replay.v1.LearnerService"
_LISTENS: Final = re.compile(r"replay server at \S+:(\d+), learner at \S+:(\d+),")
_START_S: Final = 120.0
_LOOK_S: Final = 0.05
_ALONE_S: Final = 0.5
_CALL_S: Final = 20.0
_FLAGS: Final = (
    *("--env", "CartPole-v1", "--steps", "1000000000", "--solved-return", "none", "--hidden-sizes", "16"),
    *("--learning-starts", "100", "--replay-ratio", "0.25", "--batch-size", "16"),
    *("--validate-interval", "1000000000", "--checkpoint-interval-s", "0.5"),
    *("--publish-interval", "1", "--no-tensorboard", "--no-progress"),
)


@dataclass
class Reporting:
    """An actor that reports repeatedly."""

    token: str
    run: learner_pb2.JoinResponse | None = None
    weights_version: int = 0
    """From the last reply."""

    def once(self, channel: grpc.Channel) -> None:
        """Report; the first time, join."""
        if self.run is None:
            self.run = learner_pb2.JoinResponse.FromString(self._join(channel))
        report = learner_pb2.ReportRequest(actor_id=self.run.actor_id, run_id=self.run.run_id)
        answer = self._call(channel, "Report", report.SerializeToString())
        self.weights_version = learner_pb2.ReportResponse.FromString(answer).weights_version

    def as_newcomer(self, channel: grpc.Channel) -> None:
        """Join."""
        self._join(channel)

    def _join(self, channel: grpc.Channel) -> bytes:
        return self._call(channel, "Join", learner_pb2.JoinRequest(name="bystander").SerializeToString())

    def _call(self, channel: grpc.Channel, method: str, message: bytes) -> bytes:
        unary: Any = channel.unary_unary(f"{LEARNER}/{method}")
        answer: bytes = unary(message, timeout=_CALL_S, metadata=bearer(self.token))
        return answer


class TrainerProcess:
    """A ``replay-train`` process; the counterpart of `ServerProcess`."""

    def __init__(self, log: Path, *flags: str) -> None:
        """Start it, and wait until actors can join."""
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replay_agent.commands.replay_train", *_FLAGS, *flags],
                env=server_environment({}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        deadline = time.monotonic() + _START_S
        while self.process.poll() is None and self._listens() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        listens = self._listens()
        if listens is None:
            self.kill()
            raise AssertionError(f"the learner did not start: {self.log()}")
        self.replay_port, self.port = map(int, listens.groups())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text("utf-8", errors="replace")

    def kill(self) -> None:
        """Kill the trainer."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _listens(self) -> re.Match[str] | None:
        return _LISTENS.search(self.log())


class LearnerArena(Arena):
    """A learner as the target, with a separate replay server."""

    def __init__(self, *, is_brief: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="attacks-"))
        self.authority = Authority(self.folder / "authority")
        tokens = write_usual_tokens(self.folder / "tokens.toml")
        tokens.chmod(0o600)
        certified = self.authority.certify("learner")
        self.run = self.folder / "run"
        self.server: Any = TrainerProcess(
            self.folder / "log",
            *("--runs-dir", str(self.folder), "--name", "run"),
            *("--table", f"{MINE}run", "--learner-tokens", str(tokens)),
            *("--learner-tls-cert", str(certified.cert), "--learner-tls-key", str(certified.key)),
        )
        self._channel = self.target().open_channel()
        self._actor = Reporting(WRITE)
        wait_until(lambda: self._versions() > 1, "training has begun")
        self.bystander = Bystander(self.target(), Reporting(WRITE), SLOWLY_S if is_brief else OFTEN_S)
        self.alone_steps_per_s = self.steps_per_s(_ALONE_S)
        """Training speed before all attacks."""

    def target(self) -> Target:
        """The attackers' view of the learner."""
        return Target(self.server.port, self.authority.ca.read_bytes())

    @property
    def replay(self) -> Target:
        """The attackers' view of the learner's own server."""
        return Target(self.server.replay_port, None)

    def steps_per_s(self, seconds: float) -> float:
        """Its training speed in gradient steps per second."""
        before, began = self._versions(), time.monotonic()
        time.sleep(seconds)
        return (self._versions() - before) / (time.monotonic() - began)

    def close(self) -> None:
        """Stop everything."""
        try:
            self.bystander.close()
            self._channel.close()
            assert self.server.process.poll() is None, f"the learner has ended: {self.server.log()[-2000:]}"
            assert "Traceback" not in self.server.log(), self.server.log()[-4000:]
        finally:
            self.server.kill()
            remove(self.folder)

    def _versions(self) -> int:
        """The current version of the weights; there is one per step."""
        self._actor.once(self._channel)
        return self._actor.weights_version
