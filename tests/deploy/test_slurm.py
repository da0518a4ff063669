"""The Slurm job, with real servers, and commands in place of Slurm's that run all tasks on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from replay_client import ReplayClient
from replay_client._transport.address import listens

from tests.packaging.project import ROOT
from tests.support.deadlines import PATIENCE_S, wait_until

JOB = ROOT / "deploy" / "slurm" / "train.sh"
SRUN = """#!/bin/bash
# Runs a command as so many tasks, with their output where --output says.
tasks=1
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; --output=*) output=${1#*=} ;; esac
    shift
done
trap 'kill $(jobs -p); wait' TERM
for ((task = 0; task < tasks; task++)); do
    SLURM_PROCID=$task "$@" >"${output/\\%t/$task}" 2>&1 &
done
wait
"""
NODES = ("127.0.0.1", "127.0.0.2")
SCONTROL = """#!/bin/bash
printf '%s\\n' $NODES
"""
TRAIN = """#!/bin/bash
# In place of a long training run: shows its flags, and runs until it is told to end.
printf '%s\\n' "$@" >"$FLAGS.new"
mv "$FLAGS.new" "$FLAGS"
trap 'exit 143' TERM
while :; do sleep 0.05; done
"""
ACTOR = """#!/bin/bash
exit 0
"""


def free_job_id() -> int:
    """The number of a job whose ports are free."""
    for number in itertools.count(os.getpid()):
        port = 20000 + number % 20000
        if not any(listens(f"{host}:{port + task}") for task, host in enumerate(NODES)):
            return number
    raise AssertionError


class Job:
    """A job on two "nodes"."""

    def __init__(self, folder: Path) -> None:
        self.run, self._flags = folder / "run", folder / "flags"
        programs = folder / "programs"
        programs.mkdir()
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "replay-train": TRAIN, "replay-actor": ACTOR}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o700)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        job = {"SLURM_JOB_ID": str(free_job_id()), "SLURM_JOB_NODELIST": "n[1-2]"}
        own = {"RUN": str(self.run), "FLAGS": str(self._flags), "SERVER_ARGS": f"--memory-dir {folder}"}
        self._environment = {**os.environ, **job, **own, "PATH": path}

    def start(self, nodes: int) -> subprocess.Popen[bytes]:
        """Start the job, and wait until its trainer runs."""
        places = {"SLURM_JOB_NUM_NODES": str(nodes), "NODES": " ".join(NODES[:nodes])}
        started = subprocess.Popen([JOB, "--env", "CartPole-v1"], env=self._environment | places)
        wait_until(lambda: self._flags.exists() or started.poll() is not None, "the trainer starts")
        return started

    def servers(self) -> list[str]:
        """The servers that the trainer knows."""
        return self.flags()[self.flags().index("--server") + 1].split(",")

    def flags(self) -> list[str]:
        """What the trainer got."""
        return self._flags.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_job_starts_servers_with_a_list_and_a_token_and_leaves_none_behind(job: Job) -> None:
    started = job.start(nodes=2)
    assert job.flags()[:4] == ["--runs-dir", str(job.run), "--name", "learner"]
    assert job.flags()[-2:] == ["--env", "CartPole-v1"]
    assert (job.run / "token").stat().st_mode & 0o077 == 0
    with ReplayClient(job.servers()[0], token=(job.run / "token").read_text().strip()) as client:
        shards = client.shards.map()
    assert shards is not None
    assert [shard.address for shard in shards.in_use] == job.servers()
    started.send_signal(signal.SIGTERM)
    assert started.wait(PATIENCE_S) == 143
    assert not any(map(listens, job.servers()))


def test_a_job_that_is_queued_again_resumes_its_run(job: Job) -> None:
    learner = job.run / "learner"
    learner.mkdir(parents=True)
    (learner / "settings.json").write_text("{}")
    started = job.start(nodes=1)
    assert job.flags()[:2] == ["--resume", str(learner)]
    assert len(job.servers()) == 1
    started.send_signal(signal.SIGTERM)
    assert started.wait(PATIENCE_S) == 143
