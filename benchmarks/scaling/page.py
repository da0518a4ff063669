"""The figures of "Sizing" in docs/operations/scaling.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.scaling.costs import Costs
from benchmarks.scaling.reality import Measured, simulated_core
from benchmarks.scaling.sizing import APE_X, MACHINE, SHORTEST_DELAY_S, load, servers_needed

BEGIN: Final = "<!-- figures: python -m benchmarks.scaling -->\n"
END: Final = "<!-- end of figures -->\n"
_SERVERS: Final = (1, 2, 3, 4, 8)


def rewrite(page: str, costs: Costs, measured: Sequence[Measured]) -> str:
    """Return the page with new figures between `BEGIN` and `END`."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = (
        _costs(costs),
        "As an example, take the fleet of Ape-X (Horgan et al., 2018): 360 actors insert 12,500 rows of 56.5 KB per\n"
        "second, and the learner draws 19 batches of 512 rows per second. The table has 2 million rows. Each machine\n"
        "has 64 GB of memory and a network of 10 Gbit/s. Each server then uses these fractions of its resources:\n",
        _ape_x(costs),
        "Other fleets need the following numbers of servers. The last three columns show why one server less\n"
        "would not do: the fractions that each of them would use. Where one server is enough, they show its\n"
        "own:\n",
        _needed(costs),
        "The simulation below uses the same times. For comparison, here is a real server. Each writer inserts 35 rows\n"
        "per second, and the learner does 50 steps per second:\n",
        _reality(costs, measured),
    )
    return f"{before}{BEGIN}{chr(10).join(parts)}{END}{after}"


def _costs(costs: Costs) -> str:
    rows = [
        [name, f"{cost.message_us:.0f}", f"{cost.row_us:.2f}", f"{cost.byte_ns:.2f}"]
        for name, cost in (
            ("server, a writer's message", costs.write),
            ("server, a learner's message", costs.draw),
            ("learner, the same message", costs.learner),
        )
    ]
    return _table(["CPU time", "a message, us", "a row, us", "a byte, ns"], rows)


def _ape_x(costs: Costs) -> str:
    rows = []
    for servers in _SERVERS:
        paced, unpaced = (load(APE_X, costs, MACHINE, servers, delay) for delay in (None, SHORTEST_DELAY_S))
        shares = (paced.copied_in, paced.messages_in, paced.drawn, paced.cpu, unpaced.cpu, paced.network, paced.memory)
        rows.append([str(servers), *(f"{share:.2f}" for share in shares)])
    header = [
        "servers",
        "rows in",
        "messages",
        "rows out",
        "CPU",
        "CPU if writers sent each 0.1 s",
        "network",
        "memory",
    ]
    return _table(header, rows)


def _needed(costs: Costs) -> str:
    rows = []
    for name, fleet in (
        *((f"Ape-X, learners: {learners}", replace(APE_X, learners=learners)) for learners in (1, 2, 4, 8)),
        ("rows of 45 bytes, learners: 1", replace(APE_X, row_bytes=45)),
        ("rows of 45 bytes, learners: 8", replace(APE_X, row_bytes=45, learners=8)),
    ):
        servers = servers_needed(fleet, costs, MACHINE)
        one_less = load(fleet, costs, MACHINE, max(1, servers - 1))
        shares = (one_less.cpu, one_less.network, one_less.memory)
        rows.append([name, str(servers), *(f"{share:.2f}" for share in shares)])
    return _table(["fleet", "servers", "one less: CPU", "network", "memory"], rows)


def _reality(costs: Costs, measured: Sequence[Measured]) -> str:
    rows = []
    for real in measured:
        told = simulated_core(costs, real)
        rates = (f"{real.messages_per_s:.0f}", f"{real.steps_per_s:.0f}")
        rows.append([str(real.writers), *rates, f"{real.core:.2f}", f"{told:.2f}"])
    return _table(["writers", "messages/s", "learner's steps/s", "core", "core, simulated"], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:], ""])
