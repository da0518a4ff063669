"""Minari datasets from tables of steps, and back, with the real library."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    Next,
    ReplayClient,
    Return,
    Sequences,
    Table,
    TableReplacedError,
    Transitions,
)
from replay_client._learning.answers import joined_rows, selected_rows

from tests.client.steps.copies import windows_of
from tests.support.server_process import ServerProcess

gymnasium = pytest.importorskip("gymnasium")
minari = pytest.importorskip("minari", reason="minari is not installed")

from gymnasium import spaces  # noqa: E402
from minari.data_collector.episode_buffer import EpisodeBuffer  # noqa: E402
from replay_client.gymnasium import RecordSteps  # noqa: E402
from replay_client.minari import (  # noqa: E402
    columns_from_dataset,
    export_dataset,
    import_dataset,
    rows_in_dataset,
)

ID = "tests/numbered-v0"
NESTED = {
    "obs/camera": Column("uint8", (40, 40)),
    "obs/state/speed": Column("float32"),
    "obs/state/flags": Column("bool", 2),
    "action": Column("int64"),
    "reward": Column("float32"),
    "memory": Column("float16", 3),
}
DERIVED = {"next_speed": Next("obs/state/speed"), "n_return": Return("reward"), "discount": Discount()}
TRANSITIONS = Transitions(2)
_numbers = count()


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of local datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    """A client, whose tables are dropped at the end."""
    with ReplayClient(server.address) as made:
        yield made
        for name in [name for name in made if name.startswith("minari")]:
            made.drop_table(name)


def new_table(client: ReplayClient, columns: Any, steps: Any = TRANSITIONS, **config: Any) -> Table:
    return client.create_table(f"minari-{next(_numbers)}", columns=columns, steps=steps, **{"capacity": 2000, **config})


def nested_row(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    state = {"speed": np.float32(number), "flags": rng.random(2) < 0.5}
    return {
        "obs": {"camera": rng.integers(256, size=(40, 40), dtype=np.uint8), "state": state},
        "action": number,
        "reward": number / 4,
        "memory": rng.random(3).astype(np.float16),
    }


def write_nested(table: Table, lengths: list[int], streams: int = 2) -> None:
    """Write an episode of each length, in turns; every third one ends in a terminal state."""
    numbers = count()
    with table.writer(streams=streams) as writer:
        for index, length in enumerate(lengths):
            stream = writer[index % streams]
            for _ in range(length):
                stream.append(nested_row(next(numbers)))
            stream.end_episode(nested_row(next(numbers)), terminated=index % 3 == 0)


def by_first_speed(table: Table) -> dict[float, dict[str, Any]]:
    """The stored columns of every episode, by a value of its first row."""
    rows = joined_rows(list(table.rows(order="episode")))
    assert rows.steps is not None
    assert rows.ends is not None
    parts = np.split(np.arange(rows.batch_size), np.flatnonzero(rows.steps == 0)[1:])
    found = {}
    for part in parts:
        columns = {name: values[part] for name, values in rows.items()}
        found[float(columns["obs/state/speed"][0])] = {**columns, "steps": rows.steps[part], "ends": rows.ends[part]}
    return found


def test_a_table_becomes_a_dataset_and_the_dataset_the_same_table(client: ReplayClient) -> None:
    table = new_table(client, NESTED | DERIVED)
    write_nested(table, [5, 1, 7, 3])
    saved = export_dataset(table, ID, author="the tests")
    assert (saved.episodes, saved.steps, saved.unfinished, saved.broken, saved.inserted) == (4, 16, 0, 0, 20)
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (4, 16)
    assert dataset.storage.metadata["author"] == {"the tests"}
    columns = columns_from_dataset(dataset)
    assert columns == {name: column for name, column in NESTED.items() if name != "memory"}
    copy = new_table(client, columns | {"memory": NESTED["memory"]} | DERIVED, capacity=rows_in_dataset(dataset))
    loaded = import_dataset(copy, dataset)
    assert (loaded.episodes, loaded.steps, loaded.rows) == (4, 16, 20)
    assert copy.stats().steps == table.stats().steps
    episodes, copies = by_first_speed(table), by_first_speed(copy)
    assert set(copies) == set(episodes)
    for number, episode in episodes.items():
        is_step = episode["ends"] == 0
        for name, values in episode.items():
            kept = values * is_step if name in ("action", "reward") else values  # Minari stores none at the end
            np.testing.assert_array_equal(copies[number][name], kept, err_msg=name, strict=True)


def test_a_dataset_that_was_imported_is_exported_again_as_it_was(client: ReplayClient) -> None:
    table = new_table(client, NESTED | DERIVED)
    numbers = count()
    with table.writer(streams=2) as writer:
        for index, length in enumerate([5, 1, 7, 3]):
            rows = [nested_row(next(numbers)) for _ in range(length + 1)]
            rows[length // 2]["obs"]["state"]["speed"] = np.float32(np.nan)
            for row in rows[:-1]:
                writer[index % 2].append(row)
            writer[index % 2].end_episode(rows[-1], terminated=index % 3 == 0)
    export_dataset(table, ID)
    first = minari.load_dataset(ID)
    copy = new_table(client, NESTED | DERIVED, capacity=rows_in_dataset(first))
    import_dataset(copy, first)
    export_dataset(copy, "tests/again-v0")
    again = minari.load_dataset("tests/again-v0")
    assert (again.total_episodes, again.total_steps) == (4, 16)
    assert (again.observation_space, again.action_space) == (first.observation_space, first.action_space)
    for one, other in zip(in_order(first), in_order(again), strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            np.testing.assert_array_equal(other[name], values, err_msg=name, strict=True)


def in_order(dataset: Any) -> list[dict[str, Any]]:
    """Every array of each episode by name, as Minari reads it, in the order of the actions."""
    episodes = []
    for episode in dataset.iterate_episodes():
        arrays = {name: getattr(episode, name) for name in ("actions", "rewards", "terminations", "truncations")}
        seen, state = episode.observations, episode.observations["state"]
        episodes.append(arrays | {"camera": seen["camera"], "speed": state["speed"], "flags": state["flags"]})
    return sorted(episodes, key=lambda arrays: int(arrays["actions"][0]))


def test_a_dataset_has_the_values_of_each_episode(client: ReplayClient) -> None:
    table = new_table(client, NESTED | DERIVED)
    write_nested(table, [3, 2])
    dataset = export_dataset(table, ID).dataset
    assert isinstance(dataset.observation_space, spaces.Dict)
    assert dataset.action_space == spaces.Box(-(2**63), 2**63 - 1, (), np.int64)
    first, second = sorted(dataset.iterate_episodes(), key=lambda episode: len(episode), reverse=True)
    rows = [nested_row(number) for number in range(4)]
    for name in ("speed", "flags"):
        np.testing.assert_array_equal(first.observations["state"][name], [row["obs"]["state"][name] for row in rows])
    np.testing.assert_array_equal(first.observations["camera"], [row["obs"]["camera"] for row in rows])
    np.testing.assert_array_equal(first.infos["memory"], [row["memory"] for row in rows])
    assert first.actions.tolist() == [0, 1, 2]
    assert first.rewards.tolist() == [0.0, 0.25, 0.5]
    assert (first.terminations.tolist(), first.truncations.tolist()) == ([False, False, True], [False] * 3)
    assert (second.terminations.tolist(), second.truncations.tolist()) == ([False] * 2, [False, True])


def test_episodes_that_are_not_whole_are_left_out_and_counted(client: ReplayClient) -> None:
    columns = {"obs": Column("float32"), "action": Column("int64"), "reward": Column("float32")}
    table = new_table(client, columns, Sequences(2), capacity=22)
    with table.writer(streams=3) as writer:
        for number in range(4):
            for stream in range(3):
                writer[stream].append(obs=number, action=stream, reward=0)
        writer.flush()
        writer[0].end_episode(obs=9)
        writer[1].abandon_episode()  # it has no end
        for _ in range(7):
            writer[1].append(obs=1, action=1, reward=1)
        writer[1].end_episode(obs=2, terminated=True)
        writer[2].append(obs=4, action=2, reward=0)  # it goes on
    last = joined_rows(list(table.rows()))
    only_end = replace(selected_rows(last, np.array([0])), steps=np.array([0]), ends=np.array([2], np.uint8))
    table.loader(priorities=False).insert(only_end)
    assert table.describe().inserted == 23
    saved = export_dataset(table, ID)
    assert (saved.episodes, saved.steps, saved.unfinished, saved.broken) == (1, 7, 2, 2)
    (episode,) = saved.dataset.iterate_episodes()
    assert episode.actions.tolist() == [1] * 7


def test_a_recorded_environment_can_be_recovered_from_its_dataset(client: ReplayClient) -> None:
    env = gymnasium.make("CartPole-v1")
    columns = {"obs": Column("float32", 4), "action": Column("int64"), "reward": Column("float32", sampled=False)}
    table = new_table(client, columns | {"next_obs": Next("obs"), "n_return": Return("reward"), "discount": Discount()})
    with table.writer() as writer:
        recorded = RecordSteps(env, writer)
        recorded.reset(seed=0)
        recorded.action_space.seed(0)
        for _ in range(100):
            *_, terminated, truncated, _ = recorded.step(recorded.action_space.sample())
            if terminated or truncated:
                recorded.reset()
    saved = export_dataset(table, ID, env="CartPole-v1")
    assert saved.unfinished <= 1
    assert saved.dataset.action_space == env.action_space
    assert saved.dataset.recover_environment().observation_space == env.observation_space
    for episode in saved.dataset.iterate_episodes():
        assert all(env.observation_space.contains(obs) for obs in episode.observations)
    copy = new_table(client, table.describe().create_arguments()["columns"])
    import_dataset(copy, saved.dataset)
    drawn = {window["obs"].tobytes() for window in windows_of(copy).values()}  # type: ignore[attr-defined]
    original = {window["obs"].tobytes() for window in windows_of(table).values()}  # type: ignore[attr-defined]
    assert drawn <= original
    assert len(drawn) == saved.steps


def made_by_minari(observation_space: Any, episodes: list[EpisodeBuffer]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari warns about every detail that is not given
        return minari.create_dataset_from_buffers(
            ID, episodes, observation_space=observation_space, action_space=spaces.Discrete(3)
        )


def test_a_dataset_of_tuples_and_of_part_of_its_episodes(client: ReplayClient) -> None:
    space = spaces.Tuple([spaces.Box(0, 9, (2,), np.float64), spaces.Discrete(5)])
    episodes = [
        EpisodeBuffer(
            observations=(np.full((length + 1, 2), length, float), np.arange(length + 1)),
            actions=np.ones(length, int),
            rewards=np.arange(length) / 2,
            terminations=np.zeros(length, bool),
            truncations=np.zeros(length, bool),
        )
        for length in (2, 3, 4)
    ]
    dataset = made_by_minari(space, episodes)
    table = new_table(client, columns_from_dataset(dataset), Sequences(3))
    loaded = import_dataset(table, dataset.filter_episodes(lambda episode: len(episode) != 3))
    assert (loaded.episodes, loaded.steps, loaded.rows) == (2, 6, 8)
    rows = joined_rows(list(table.rows()))
    assert rows.steps is not None
    assert rows.ends is not None
    assert rows["obs/0"][:, 0].tolist() == [2] * 3 + [4] * 5
    assert rows["obs/1"].tolist() == rows.steps.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert rows["action"].tolist() == [1, 1, 0, 1, 1, 1, 1, 0]
    assert rows.ends.tolist() == [0, 0, 1, 0, 0, 0, 0, 1]


def test_what_does_not_fit_is_named_before_anything_is_written(client: ReplayClient, datasets: Path) -> None:
    short = {"obs": Column("float32", 4), "action": Column("int64"), "reward": Column("float32")}
    table, plain = new_table(client, short, Sequences(2)), new_table(client, short, None)
    box = spaces.Box(-1, 1, (3,), np.float32)
    cases: list[tuple[Table, str, dict[str, Any], str]] = [
        (plain, ID, {}, "table: expected a table with steps, got table 'minari-.*', without steps"),
        (table, ID, {"obs": "image"}, "obs: expected one of the columns obs, action, reward, got 'image'"),
        (table, ID, {"reward": "r"}, "reward: expected one of the columns obs, action, reward, got 'r'"),
        (table, ID, {"observation_space": box}, r"columns.obs: expected float32\[3\], as in observation_space, got"),
        (table, ID, {"action_space": box}, r"columns.action: expected float32\[3\], as in action_space, got int64"),
        (
            table,
            ID,
            {"env": "FrozenLake-v1"},
            r"columns.obs: expected int64, as in observation_space, got float32\[4\]",
        ),
        (
            table,
            "no version",
            {},
            "dataset_id: expected an ID that Minari accepts, such as 'cartpole/replay-v0', got 'no version'",
        ),
        (table, "none", {}, "dataset_id: expected an ID that Minari accepts, such as 'cartpole/replay-v0', got 'none'"),
    ]
    for given, name, options, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            export_dataset(given, name, **options)
    assert list(datasets.iterdir()) == []
    export_dataset(table, ID)
    with pytest.raises(InvalidArgumentError, match="dataset_id: expected an ID of no local dataset"):
        export_dataset(table, ID)


@pytest.mark.parametrize(
    ("column", "value", "space"),
    [
        (Column("int64"), 300, spaces.Box(0, 255, (), np.uint8)),
        (Column("int64"), 2, spaces.Box(0, 1, (), np.bool_)),  # type: ignore[arg-type]
        (Column("float64"), 1e300, spaces.Box(-np.inf, np.inf, (), np.float32)),
    ],
)
def test_values_that_a_space_cannot_hold_are_not_exported(
    client: ReplayClient, datasets: Path, column: Column, value: float, space: Any
) -> None:
    table = new_table(client, {"obs": column, "action": Column("int64"), "reward": Column("float32")}, Sequences(2))
    with table.writer() as writer:
        writer.append(obs=0, action=0, reward=0.0)
        writer.append(obs=value, action=0, reward=0.0)
        writer.end_episode(obs=0)
    with pytest.raises(InvalidArgumentError, match=r"columns\.obs: expected"):
        export_dataset(table, ID, observation_space=space)
    assert not (datasets / ID).exists()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_numbers_in_infos_and_bfloat16_come_back(client: ReplayClient, data_format: str) -> None:
    columns = {"obs": Column("bfloat16", 2), "action": Column("int64"), "reward": Column("float32")}
    columns |= {"log_mu": Column("float32"), "state": Column("bfloat16", 3), "hash": Column("uint64")}
    columns |= {"weight": Column("float16"), "is_expert": Column("bool")}
    table, copy = new_table(client, columns, Sequences(2)), new_table(client, columns, Sequences(2))
    with table.writer() as writer:
        for number in range(4):
            numbers = {"log_mu": -0.5 * number, "hash": 2**64 - 1 - number, "weight": number, "is_expert": number % 2}
            writer.append({"obs": [number] * 2, "action": 0, "reward": 0.0, "state": [number] * 3} | numbers)
        writer.end_episode(obs=[4, 4])
    export_dataset(table, ID, data_format=data_format)
    for name, values in minari.load_dataset(ID)[0].infos.items():
        assert values.dtype == ("float32" if name == "state" else columns[name].dtype)
    import_dataset(copy, minari.load_dataset(ID))
    (before,), (after,) = table.rows(), copy.rows()
    for name in columns:
        np.testing.assert_array_equal(before[name], after[name])


def test_tables_with_other_columns_than_the_dataset_are_refused(client: ReplayClient) -> None:
    source = new_table(client, NESTED | DERIVED)
    write_nested(source, [3])
    dataset = export_dataset(source, ID).dataset
    without_flags = {name: column for name, column in NESTED.items() if name != "obs/state/flags"}
    for columns, message in [
        (without_flags | DERIVED, r"columns.obs/state/flags: expected bool\[2\], as in observation_space, got none"),
        (NESTED | DERIVED | {"obs/sound": Column("int8")}, "columns.obs/sound: expected no such column, as in"),
        (NESTED | DERIVED | {"value": Column("float32")}, "columns: expected .*, got missing: value"),
        (NESTED | DERIVED | {"memory": Column("int64")}, r"columns.memory: expected int64, got float16\[4,3\]"),
    ]:
        target = new_table(client, columns)
        with pytest.raises(InvalidArgumentError, match=message):
            import_dataset(target, dataset)
        assert len(target) == 0
    plain = new_table(client, NESTED, None)
    with pytest.raises(InvalidArgumentError, match="table: expected a table with steps"):
        import_dataset(plain, dataset)


def test_all_values_of_a_dataset_are_checked_before_any_is_inserted(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay_client.minari.ROWS_AT_ONCE", 1)
    episodes = [
        EpisodeBuffer(
            observations=np.zeros((3, 2)),
            actions=np.full(2, action),
            rewards=np.zeros(2),
            terminations=np.zeros(2, bool),
            truncations=np.zeros(2, bool),
        )
        for action in (1, 2, 300)
    ]
    dataset = made_by_minari(spaces.Box(0, 9, (2,), np.float64), episodes)
    table = new_table(client, columns_from_dataset(dataset) | {"action": Column("int8")}, Sequences(3))
    with pytest.raises(InvalidArgumentError, match=r"columns.action: expected int8, -128 to 127, got 300"):
        import_dataset(table, dataset)
    assert len(table) == 0


def test_an_environment_made_for_its_spaces_is_closed(client: ReplayClient, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": Column("float32", 4), "action": Column("int64"), "reward": Column("float32")}
    closed: list[Any] = []
    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.close", lambda env: closed.append(env))
    export_dataset(new_table(client, columns, Sequences(2)), ID, env="CartPole-v1")
    assert len(closed) == 1


def test_an_export_that_fails_leaves_no_dataset(
    client: ReplayClient, datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(client, NESTED | DERIVED)
    write_nested(table, [3])
    episodes = table.episodes

    def replaced(**options: Any) -> Any:
        reader = episodes(**options)
        table.drop()
        client.create_table(table.name, columns=NESTED, steps=Sequences(2), capacity=10)
        return reader

    monkeypatch.setattr(table, "episodes", replaced)
    with pytest.raises(TableReplacedError):
        export_dataset(table, ID)
    assert not (datasets / ID).exists()
