"""The formula for the number of servers, and the simulation that it is checked by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scaling.__main__ import COSTS, REALITY
from benchmarks.scaling.costs import Cost, Costs
from benchmarks.scaling.page import rewrite
from benchmarks.scaling.reality import load as load_reality
from benchmarks.scaling.reality import simulated_core
from benchmarks.scaling.simulation import Simulation
from benchmarks.scaling.sizing import APE_X, MACHINE, Fleet, Machine, load, servers_needed
from tests.packaging.project import ROOT

ROUND = Costs("by hand", Cost(400, 2, 0.5), Cost(500, 1, 0.25), Cost(300, 1, 0.5))
ENDLESS = Machine(network_bytes_per_s=1e15, memory_bytes=1e15)


def test_the_load_of_ape_x_is_that_of_the_arithmetic_by_hand() -> None:
    fleet = replace(APE_X, row_bytes=50_000)
    one, four = (load(fleet, ROUND, MACHINE, servers) for servers in (1, 4))
    assert one.copied_in == pytest.approx(12_500 * (2e-6 + 50_000 * 0.5e-9))
    assert one.messages_in == pytest.approx(500 * 400e-6)  # 360 writers each 0.72 s
    assert four.messages_in == pytest.approx(360 / 4 / 0.18 * 400e-6)
    assert load(fleet, ROUND, MACHINE, 1, delay=0.1).messages_in == pytest.approx(3600 * 400e-6)
    assert one.drawn == pytest.approx(19 * 500e-6 + 19 * 512 * (1e-6 + 50_000 * 0.25e-9))
    assert four.drawn == pytest.approx(19 * 500e-6 + 19 * 128 * (1e-6 + 50_000 * 0.25e-9))
    assert one.network == pytest.approx(12_500 * 50_000 / 1.25e9)
    assert four.memory == pytest.approx(2e6 * 50_000 / 4 / 64e9)


@pytest.mark.parametrize(
    ("fleet", "machine", "bound"),
    [
        (APE_X, ENDLESS, "CPU"),
        (replace(APE_X, learners=8), Machine(1e8, 1e15), "network"),
        (APE_X, Machine(1e15, 2e9), "memory"),
    ],
)
def test_one_server_less_than_needed_is_too_few(fleet: Fleet, machine: Machine, bound: str) -> None:
    servers = servers_needed(fleet, ROUND, machine)
    assert servers > 1
    assert load(fleet, ROUND, machine, servers).fits
    assert not load(fleet, ROUND, machine, servers - 1).fits
    assert load(fleet, ROUND, machine, servers - 1).bound == bound


@pytest.mark.parametrize(("servers", "learners"), [(3, 1), (8, 4)])
def test_the_simulation_of_a_light_load_uses_what_the_formula_says(servers: int, learners: int) -> None:
    fleet = replace(APE_X, learners=learners, row_bytes=20_000)
    told = load(fleet, ROUND, MACHINE, servers)
    outcome = Simulation(fleet, ROUND, MACHINE, servers).run(4.0)
    assert outcome.rows_per_s == pytest.approx(fleet.rows_per_s, rel=0.02)
    assert outcome.steps_per_s == pytest.approx(learners * fleet.steps_per_s, rel=0.02)
    # The busiest server has a few more writers than the mean.
    assert told.cpu <= outcome.core * 1.02
    assert outcome.core <= told.cpu * 1.25


def test_the_simulation_tells_what_a_real_server_used() -> None:
    costs = Costs.load(COSTS)
    for measured in load_reality(REALITY):
        assert simulated_core(costs, measured) == pytest.approx(measured.core, rel=0.3)


def test_the_page_has_the_figures_of_the_measured_costs() -> None:
    page = (ROOT / "docs" / "operations" / "scaling.md").read_text()
    assert page == rewrite(page, Costs.load(COSTS), load_reality(REALITY))
