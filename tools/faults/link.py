"""Simulates two networked machines: two network namespaces and a breakable cable between them.

Needs root, ``ip``, ``ss``, ``tc`` and ``iptables``. Delays come from netem if the kernel has it, otherwise from a
bandwidth limit that queues packets. Everything is removed after the block; leftovers of a killed process are removed by
the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import TracebackType

import psutil

_PREFIX = "replay-link"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\w+-[sc]")
_SERVER, _CLIENTS = "10.99.0.1", "10.99.0.2"
_CHAIN = "FAULTS"
_NETEM = ("netem", "delay", "25ms", "20ms", "loss", "1%", "reorder", "5%")
_NARROW = ("tbf", "rate", "4mbit", "burst", "16kb", "latency", "300ms")
"""Packets wait in the queue for up to 300 ms; those that would wait longer are dropped."""


class Link:
    """A simulated network link with injectable faults; `repair` removes them."""

    server_host = _SERVER
    """Address of a server at the server's end."""

    def __init__(self, name: str) -> None:
        """Create the namespaces and the cable.

        Args:
            name: a few letters, unique within this process.
        """
        _sweep()
        self._spaces = {end: f"{_PREFIX}-{os.getpid()}-{name}-{end}" for end in "sc"}
        self.delays_by = ""
        """The discipline that `slow` uses."""
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        server, clients = self._spaces["s"], self._spaces["c"]
        for space in (server, clients):
            _run("ip", "netns", "add", space)
        _run("ip", "-n", server, "link", "add", "end", "type", "veth", "peer", "name", "end", "netns", clients)
        for space, address in ((server, _SERVER), (clients, _CLIENTS)):
            _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "end")
            for device in ("lo", "end"):
                _run("ip", "-n", space, "link", "set", device, "up")
            self._tables(space, "-N", _CHAIN)
            self._tables(space, "-A", "INPUT", "-i", "end", "-j", _CHAIN)
        self.delays_by = next(
            (discipline[0] for discipline in (_NETEM, _NARROW) if self._shape(clients, discipline)), ""
        )
        self.repair()

    @property
    def at_server(self) -> Sequence[str]:
        """Command prefix that runs a command at the server's end."""
        return ("ip", "netns", "exec", self._spaces["s"])

    @property
    def at_clients(self) -> Sequence[str]:
        """Command prefix that runs a command at the clients' end."""
        return ("ip", "netns", "exec", self._spaces["c"])

    def cut(self) -> None:
        """Unplug the cable."""
        _run("ip", "-n", self._spaces["c"], "link", "set", "end", "down")

    def swallow(self, ends: str = "sc") -> None:
        """Silently drop everything sent to these ends."""
        for end in ends:
            self._tables(self._spaces[end], "-A", _CHAIN, "-j", "DROP")

    def swallow_open(self, port: int) -> int:
        """Silently drop all packets of the server's current connections on this port; return their number."""
        query = [*self.at_clients, "ss", "-Htn", "state", "established", f"( dport = :{port} )"]
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        # Each line has two queue lengths and both addresses.
        ports = {line.split()[2].rpartition(":")[2] for line in found.splitlines()}
        for mine in ports:
            self._tables(self._spaces["s"], "-A", _CHAIN, "-p", "tcp", "--sport", mine, "-j", "DROP")
            self._tables(self._spaces["c"], "-A", _CHAIN, "-p", "tcp", "--dport", mine, "-j", "DROP")
        return len(ports)

    def refuse(self) -> None:
        """Reply to every packet with a reset."""
        for space in self._spaces.values():
            self._tables(space, "-A", _CHAIN, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")

    def lose(self, share: float) -> None:
        """Drop this fraction of packets, in both directions."""
        for space in self._spaces.values():
            self._tables(
                space, "-A", _CHAIN, *("-m", "statistic", "--mode", "random", "--probability", str(share)), "-j", "DROP"
            )

    def slow(self) -> None:
        """Delay packets by varying times, and drop a few."""
        discipline = _NETEM if self.delays_by == _NETEM[0] else _NARROW
        for space in self._spaces.values():
            self._shape(space, discipline)

    def repair(self) -> None:
        """Remove all faults."""
        for space in self._spaces.values():
            self._tables(space, "-F", _CHAIN)
            subprocess.run(
                ["ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", "end", "root"],
                capture_output=True,
                check=False,
            )
        _run("ip", "-n", self._spaces["c"], "link", "set", "end", "up")

    def close(self) -> None:
        """End the processes that still run at the ends, and remove the namespaces."""
        for space in self._spaces.values():
            _remove(space)

    def __enter__(self) -> Link:
        """Return this link, for a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the link."""
        self.close()

    def _shape(self, space: str, discipline: Sequence[str]) -> bool:
        if shutil.which("tc") is None:
            return False
        command = ["ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", "end", "root", *discipline]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _tables(self, space: str, *rule: str) -> None:
        _run("ip", "netns", "exec", space, "iptables", "--wait", *rule)


def obstacle() -> str:
    """The reason why this machine does not support a `Link`; empty if it does."""
    missing = [program for program in ("ip", "ss", "iptables") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Link("try") as link:
            link.refuse()
            link.lose(0.1)
            return "" if link.delays_by else "tc is not installed, or the kernel has neither netem nor tbf"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


def _sweep() -> None:
    """Remove leftovers of dead processes."""
    for space in _namespaces():
        name = _NAME.fullmatch(space)
        if name is not None and not psutil.pid_exists(int(name[1])):
            _remove(space)


def _namespaces() -> Iterator[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return (line.split()[0] for line in listed.splitlines() if line)


def _remove(space: str) -> None:
    within = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout
    for process in within.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
