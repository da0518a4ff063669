"""Rows as Arrow tables and Parquet files, and back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_client import (
    Column,
    InvalidArgumentError,
    MissingExtraError,
    ReplayClient,
    Sequences,
    Table,
    TableExistsError,
    TableReplacedError,
    Transitions,
    _extras,
)
from replay_client._learning.answers import joined_rows
from replay_proto.schema import DTYPES

from tests.client import numbered
from tests.client.steps.copies import assert_same_table, write_episodes
from tests.client.steps.numbered_episodes import COLUMNS
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from replay_client.sync.arrow import ParquetRows, schema_of, write_parquet  # noqa: E402

NewTable = Callable[..., Table]
SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 3), (2, 1, 3)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.parquet"


@pytest.fixture
def copy(client: ReplayClient, table: Table) -> Iterator[str]:
    """The name of a table that is dropped at the end."""
    name = f"{table.name}-copy"
    yield name
    if name in client:
        client.drop_table(name)


def values_of(column: Column, count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values of all bit patterns, except that booleans are 0 or 1."""
    if column.dtype.kind == "b":
        return rng.random((count, *column.shape)) < 0.5
    size = count * math.prod(column.shape)
    return np.frombuffer(rng.bytes(size * column.dtype.itemsize), column.dtype).reshape(count, *column.shape)


def assert_same_bits(columns: Any, expected: Any) -> None:
    assert list(columns) == list(expected)
    for name, values in expected.items():
        assert columns[name].dtype == values.dtype
        assert columns[name].shape == values.shape
        if values.dtype.name == "bfloat16":  # through float32, which keeps no bits of a signaling NaN
            np.testing.assert_array_equal(columns[name].astype(np.float32), values.astype(np.float32))
        else:
            assert columns[name].tobytes() == values.tobytes(), name


def test_every_dtype_and_shape_comes_back_bit_by_bit(
    new_table: NewTable, client: ReplayClient, file: Path, copy: str
) -> None:
    columns = {f"{dtype}/{len(shape)}": Column(dtype, shape) for dtype in DTYPES for shape in SHAPES}
    table, rng = new_table(columns=columns, capacity=30), np.random.default_rng(0)
    rows = {name: values_of(column, 30, rng) for name, column in columns.items()}
    table.insert(rows, priorities=np.arange(30) / 4)
    assert table.to_parquet(file).rows == 30
    loaded = client.load_parquet(file, name=copy)
    read = loaded.read(range(30))
    assert_same_bits(read, rows)
    assert read.priorities.tolist() == (np.arange(30) / 4).tolist()
    assert (loaded.schema, loaded.capacity, loaded.backend) == (table.schema, table.capacity, table.backend)


def test_other_programs_read_vectors_arrays_and_places(new_table: NewTable, file: Path) -> None:
    columns = {"obs": Column("float32", 3), "image": Column("uint8", (2, 3)), "action": Column("int64")}
    table = new_table(columns=columns)
    rng = np.random.default_rng(0)
    rows = {name: values_of(column, 10, rng) for name, column in columns.items()}
    rows["obs"] = np.arange(30, dtype=np.float32).reshape(10, 3)
    table.insert(rows, priorities=np.arange(10.0))
    arrow = table.to_arrow()
    table.to_parquet(file)
    assert pq.read_table(file).equals(arrow, check_metadata=True)
    assert arrow.schema.names == ["obs", "image", "action", "_key", "_priority", "_stream", "_episode"]
    assert arrow.schema.field("obs").type == pa.list_(pa.field("element", pa.float32(), nullable=False), 3)
    assert arrow.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (2, 3))
    assert arrow["image"].to_pylist() == rows["image"].reshape(10, 6).tolist()
    assert arrow["obs"].to_pylist() == rows["obs"].tolist()
    assert arrow["_key"].to_pylist() == arrow["_priority"].to_pylist() == list(range(10))


STEPS: dict[str, dict[str, Any]] = {
    "transitions": {"columns": COLUMNS, "steps": Transitions(2)},
    "sequences": {
        "columns": {
            "x": Column("int64"),
            "reward": Column("float32", at="start"),
        },
        "steps": Sequences(length=3, burn_in=1, period=2),
    },
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_table_of_steps_comes_back_with_its_windows(
    new_table: NewTable, client: ReplayClient, file: Path, copy: str, kind: str
) -> None:
    table = new_table(capacity=250, **STEPS[kind])
    write_episodes(table, streams=3, rows=300)
    result = table.to_parquet(file)
    assert (result.rows, result.inserted, result.overtaken) == (250, 300, 0)
    loaded = client.load_parquet(file, name=copy)
    assert loaded.steps == table.steps
    assert_same_table(table, loaded)
    again = new_table(**STEPS[kind])
    again.load_parquet(file, priorities=False)
    assert again.stats().steps == table.stats().steps


def test_the_file_says_where_episodes_end_and_what_cannot_be_drawn(new_table: NewTable) -> None:
    table = new_table(columns=STEPS["transitions"]["columns"], steps=Transitions(2))
    with table.writer() as writer:
        for end in ("terminated", "truncated", None):
            for _ in range(2):
                writer.append(x=1, reward=1.0)
            if end:
                writer.end_episode(x=2, terminated=end == "terminated")
    data = table.to_arrow()
    assert data["_step"].to_pylist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert data["_episode"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert np.flatnonzero(data["_terminated"]).tolist() == [2]
    assert np.flatnonzero(data["_truncated"]).tolist() == [5]
    assert data["_priority"].to_pylist() == [1, 1, None, 1, 1, None, None, None]


def test_images_are_stored_with_a_byte_or_less_for_each_number(new_table: NewTable, file: Path) -> None:
    table = new_table(columns={"image": Column("uint8", (100, 100))})
    table.insert({"image": np.random.default_rng(0).integers(256, size=(50, 100, 100), dtype=np.uint8)})
    table.to_parquet(file)
    assert file.stat().st_size < 50 * 10_000 * 1.02


def test_an_export_in_the_order_of_episodes(new_table: NewTable, file: Path) -> None:
    table = new_table(**STEPS["transitions"])
    write_episodes(table, streams=3, rows=100)
    table.to_parquet(file, order="episode")
    read = joined_rows(list(table.rows(order="episode")))
    assert pq.read_table(file)["_key"].to_pylist() == read.row_keys.tolist()


STATE: dict[str, Any] = {"name": "", "uid": b"", "directory": "", "socket": ""}
"""What differs between tables of the same config."""
CONFIGS: list[dict[str, Any]] = [
    {"backend": "sum_tree", "alpha": 0.7, "max_priority": 3.0, "seed": 2**64 - 1},
    {"backend": "rank", "alpha": 0.25, "min_size": 20},
    {"backend": "uniform", "min_size": 10, "samples_per_insert": 2.0, "error_buffer": (-50.0, 1e4)},
    {"backend": "fifo", "max_times_sampled": 3, "capacity": 60},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["backend"])
def test_a_table_is_made_anew_with_its_config(
    new_table: NewTable, client: ReplayClient, file: Path, copy: str, config: dict[str, Any]
) -> None:
    table = new_table(**config)
    table.insert(numbered.rows(range(50)), priorities=np.arange(50))
    table.to_parquet(file)
    loaded = client.load_parquet(file, name=copy, keys=True)
    assert replace(loaded.describe(), **STATE) == replace(table.describe(), **STATE)
    read = loaded.read(range(50))
    numbered.assert_whole(read)
    assert read.row_keys.tolist() == read.priorities.tolist() == list(range(50))


def test_a_copy_may_have_another_config(new_table: NewTable, client: ReplayClient, file: Path, copy: str) -> None:
    table = new_table(alpha=0.9)
    table.insert(numbered.rows(range(50)))
    table.to_parquet(file)
    loaded = client.load_parquet(file, name=copy, capacity=20, backend="uniform")
    assert (loaded.capacity, loaded.backend, len(loaded)) == (20, "uniform", 20)
    assert loaded.read(range(50)).row_keys.tolist() == list(range(30, 50))
    with pytest.raises(TableExistsError):
        client.load_parquet(file)


def test_an_empty_table_comes_back_empty(table: Table, file: Path) -> None:
    assert table.to_parquet(file).rows == table.to_arrow().num_rows == 0
    loaded = table.load_parquet(file)
    assert (loaded.rows, loaded.first_key, len(table)) == (0, None, 0)


def test_files_of_other_programs_are_loaded_like_rows(new_table: NewTable, file: Path) -> None:
    columns = {"image": Column("float32", (2, 2)), "obs": Column("float32", 3), "done": Column("bool")}
    table = new_table(columns=columns)
    table.insert({"image": np.zeros((5, 2, 2)), "obs": np.zeros((5, 3)), "done": np.zeros(5)})
    image, obs, done = np.arange(8.0).reshape(2, 4), np.arange(6.0).reshape(2, 3), [0, 1]
    for images in (image.tolist(), image.reshape(2, 2, 2).tolist()):
        pq.write_table(pa.table({"done": done, "obs": obs.tolist(), "image": images}), file)
        loaded = table.load_parquet(file, priorities=False)
        read = table.read(np.arange(len(table) - loaded.rows, len(table)))
        np.testing.assert_array_equal(read["image"], image.reshape(2, 2, 2))
        np.testing.assert_array_equal(read["obs"], obs)
        assert read["done"].tolist() == [False, True]


OPTIONAL = {
    "number": Column("int64"),
    "goal": Column("float32", 2, optional=True),
    "image": Column("uint8", (2, 2), optional=True),
    "score": Column("int32", optional=True),
}


def test_optional_columns_are_null_where_they_are_missing(
    new_table: NewTable, client: ReplayClient, file: Path, copy: str
) -> None:
    table, rng = new_table(columns=OPTIONAL), np.random.default_rng(0)
    present = {f"{name}_present": rng.random(30) < 0.5 for name in ("goal", "image", "score")}
    values = {name: values_of(column, 30, rng) for name, column in OPTIONAL.items()}
    table.insert({**values, **present})
    table.insert({"number": np.arange(5)})
    data = table.to_arrow()
    assert data.schema.names[:4] == list(OPTIONAL)
    table.to_parquet(file)
    assert pq.read_table(file).equals(data, check_metadata=True)
    original = table.read(range(35))
    for name in ("goal", "image", "score"):
        assert data[name].is_null().to_pylist() == (~original[f"{name}_present"]).tolist()
    assert_same_bits(client.load_parquet(file, name=copy).read(range(35)), dict(original))


def test_some_of_the_columns(new_table: NewTable, client: ReplayClient, file: Path, copy: str) -> None:
    table = new_table(columns=OPTIONAL | {"obs/a": Column("int64"), "obs/b": Column("int64")})
    table.insert({"number": np.arange(3), "score": np.arange(3), "obs": {"a": np.arange(3), "b": np.arange(3)}})
    places = ["_key", "_priority", "_stream", "_episode"]
    assert table.to_arrow(columns=["obs", "score"]).schema.names == ["score", "obs/a", "obs/b", *places]
    assert table.to_arrow(columns=["score_present"])["score_present"].to_pylist() == [True] * 3
    assert table.to_arrow(columns=[]).schema.names == places
    with pytest.raises(InvalidArgumentError, match="columns: expected names among number, goal"):
        table.to_arrow(columns=["nothing"])
    table.to_parquet(file, columns=["number"])
    assert pq.read_schema(file).names == ["number", *places]
    with pytest.raises(InvalidArgumentError, match="path: expected a file exported with all columns"):
        client.load_parquet(file, name=copy)


def test_files_may_lack_optional_columns_or_have_masks(new_table: NewTable, file: Path) -> None:
    table = new_table(columns=OPTIONAL)
    nothing = pa.nulls(3)
    pq.write_table(pa.table({"number": [1, 2, 3], "score": [4, 5, 6], "goal": nothing}), file)
    table.load_parquet(file, priorities=False)
    pq.write_table(pa.table({"number": [1, 2], "score": [4, 5], "score_present": [True, False]}), file)
    table.load_parquet(file, priorities=False)
    read = table.read(range(5))
    assert read["score"].tolist() == [4, 5, 6, 4, 0]
    assert read["score_present"].tolist() == [True] * 4 + [False]
    assert not read["goal_present"].any()
    assert not read["image_present"].any()


def number_file(file: Path, **columns: Any) -> None:
    given = {name: values.tolist() for name, values in numbered.rows(range(3)).items()} | columns
    pq.write_table(pa.table({name: values for name, values in given.items() if values is not None}), file)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"obs": None}, {}, r"columns: expected number, obs, done, got missing: obs"),
        ({"extra": [1, 2, 3]}, {}, r"columns: expected number, obs, done, got unknown: extra"),
        ({"number": [0.5, 1, 2]}, {}, r"columns.number: expected int64, got float64\[3\]"),
        ({"number": ["a", "b", "c"]}, {}, r"columns.number: expected int64, got object\[3\]"),
        ({"number": [1, None, 2]}, {}, r"columns.number: expected no nulls, got 1 in 3 rows"),
        ({"obs": [[1.0, 2.0]] * 3}, {}, r"columns.obs: expected float32\[3,3\], got float64\[3,2\]"),
        ({"obs": [[1.0, 2.0, 3.0], [4.0], [5.0] * 5]}, {}, r"columns.obs: expected lists of the same length"),
        ({}, {"priorities": True}, r"priorities: expected a file with _priority, got no _priority"),
        ({"_priority": [1, 2, -3]}, {"priorities": True}, r"priorities: expected finite numbers .* got -3"),
        ({"_priority": [1, None, 3]}, {"priorities": True}, r"priorities: expected finite numbers .* got nan"),
        ({"_priority": ["a", "b", "c"]}, {"priorities": True}, r"columns._priority: expected double, got string"),
        ({}, {"keys": True}, r"keys: expected a file with _key, got no _key"),
        ({"_key": [0, 1, 2]}, {"keys": True}, r"keys: expected key 1, the next key .*, got 0"),
        ({"_key": [1, 2, 4]}, {"keys": True}, r"keys: expected key 3, the next key .*, got 4"),
        ({"_step": [0, 1, 2]}, {}, r"path: expected rows without steps, as in table .* got steps"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_stored(
    table: Table, file: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    table.insert(numbered.rows([0]))
    number_file(file, **columns)
    with pytest.raises(InvalidArgumentError, match=message):
        table.load_parquet(file, **{"priorities": False, **options})
    assert len(table) == 1


def test_all_rows_are_checked_before_the_first_is_inserted(table: Table, file: Path) -> None:
    count = 20_000
    priorities = np.ones(count)
    priorities[-1] = -1
    pq.write_table(
        pa.table(
            {name: list(values) for name, values in numbered.rows(range(count)).items()} | {"_priority": priorities}
        ),
        file,
    )
    with pytest.raises(InvalidArgumentError, match="priorities"):
        table.load_parquet(file)
    assert len(table) == 0


def test_keys_that_other_inserts_have_taken_meanwhile_are_noticed(
    table: Table, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_file(file, _key=[0, 1, 2])
    check = ParquetRows.check

    def checked(rows: ParquetRows, *given: Any, **options: Any) -> None:
        check(rows, *given, **options)
        table.insert(numbered.rows([7]))

    monkeypatch.setattr(ParquetRows, "check", checked)
    with pytest.raises(InvalidArgumentError, match="keys: expected no other inserts meanwhile") as raised:
        table.load_parquet(file, priorities=False, keys=True)
    assert raised.value.__notes__ == ["3 rows were inserted before this error"]


def test_a_damaged_page_is_refused_before_a_row_is_inserted(table: Table, file: Path) -> None:
    table.insert(numbered.rows(range(20)))
    table.to_parquet(file)
    whole = file.read_bytes()
    pages = pq.ParquetFile(file).metadata.row_group(0)
    columns = [pages.column(place) for place in range(pages.num_columns)]
    for column in (each for each in columns if each.path_in_schema != "_key"):  # which is not read
        damaged = bytearray(whole)
        first = column.dictionary_page_offset or column.data_page_offset
        damaged[first + column.total_compressed_size - 1] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(InvalidArgumentError, match=r"path: expected an intact Parquet file, got .* CRC"):
            table.load_parquet(file)
    assert len(table) == 20


def test_files_that_make_no_table_are_refused_before_one_is_made(
    new_table: NewTable, client: ReplayClient, file: Path, tmp_path: Path
) -> None:
    names = set(client)
    number_file(file)
    with pytest.raises(InvalidArgumentError, match="path: expected a file exported with all columns"):
        client.load_parquet(file, priorities=False)
    (tmp_path / "text").write_text("no rows")
    with pytest.raises(InvalidArgumentError, match="path: expected an intact Parquet file"):
        client.load_parquet(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        client.load_parquet(tmp_path / "nothing")
    table = new_table(capacity=50)
    table.insert(numbered.rows(range(60)))
    table.to_parquet(file)
    for config, field in [
        ({"columns": {}}, "columns"),
        ({"backend": "fifo", "capacity": 40}, "capacity"),
        ({"backend": "fifo", "capacity": "90"}, "capacity"),
        ({"min_size": "9"}, "min_size"),
        ({"samples_per_insert": 4.0, "error_buffer": "90"}, "error_buffer"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"samples_per_insert": 4.0, "error_buffer": 100.0}, "samples_per_insert"),
        ({"keys": True}, "keys"),
        ({"steps": Sequences(2)}, "steps"),
    ]:
        with pytest.raises(InvalidArgumentError, match=f"^{field}: "):
            client.load_parquet(file, name=f"{table.name}-copy", **config)  # type: ignore[arg-type]
    schema = pq.read_schema(file)
    newer = pq.read_table(file).replace_schema_metadata({b"replay.table": b'{"shards": 3}'})
    assert b"replay.table" in schema.metadata
    pq.write_table(newer, file)
    with pytest.raises(InvalidArgumentError, match="path: expected a file with a config that is known here"):
        client.load_parquet(file, name=f"{table.name}-copy")
    assert set(client) == names | {table.name}


def test_steps_need_their_places(new_table: NewTable, file: Path) -> None:
    table = new_table(**STEPS["transitions"])
    pq.write_table(pa.table({"x": [1, 2], "reward": [0.0, 1.0], "_stream": [0, 0]}), file)
    with pytest.raises(InvalidArgumentError, match=r"steps: expected a file with _stream, .* got no _episode"):
        table.load_parquet(file, priorities=False)


def test_an_export_that_fails_leaves_the_file_of_before(new_table: NewTable, table: Table, file: Path) -> None:
    table.insert(numbered.rows(range(30)))
    table.to_parquet(file)
    before, reader, description = file.read_bytes(), table.rows(chunk=20), table.describe()
    next(reader)
    table.drop()
    new_table(name=table.name)
    with pytest.raises(TableReplacedError):
        write_parquet(reader, schema_of(description), file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_rows_that_a_writer_evicts_meanwhile_are_counted(new_table: NewTable, file: Path) -> None:
    table = new_table(capacity=3000)
    table.insert(numbered.rows(range(3000)))
    stop = threading.Event()

    def write() -> None:
        with table.writer(block_rows=100) as writer:
            number = 3000
            while not stop.is_set():
                writer.append(numbered.row(number))
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        results = [table.to_parquet(file) for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    result, data = results[-1], pq.read_table(file)
    keys = data["_key"].to_numpy()
    assert len(keys) == result.rows == 3000 - result.overtaken
    assert (np.diff(keys) > 0).all()
    assert result.inserted - 3000 <= keys[0] <= keys[-1] < result.inserted
    assert data["number"].to_pylist() == keys.tolist()


def test_a_server_that_is_killed_meanwhile_gets_every_row_once(
    start_server: Callable[..., ServerProcess], connect: Callable[..., ReplayClient], file: Path, tmp_path: Path
) -> None:
    count, capacity = 30_000, 4_000  # so an insert has 64 rows, and there are many
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = connect(server).create_table("t", columns={"number": Column("int64")}, capacity=capacity)
    pq.write_table(pa.table({"number": np.arange(count)}), file)
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(table.load_parquet, file, priorities=False)
        wait_until(lambda: table.describe().inserted > 0, "rows arrived")
        server.kill()
        server.restart()
        assert loading.result().rows == count
    assert table.describe().inserted == count
    assert table.read(np.arange(count))["number"].tolist() == list(range(count - capacity, count))


def test_a_bar_shows_the_progress(table: Table, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.insert(numbered.rows(range(50)))
    table.to_parquet(file, progress=True)
    table.load_parquet(file, progress=True)
    assert capsys.readouterr().err.count("50/50") == 2


def test_without_pyarrow_the_extra_is_named(
    client: ReplayClient, table: Table, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "pyarrow" else util.find_spec(name))
    with_file: list[Callable[..., object]] = [table.to_parquet, table.load_parquet, client.load_parquet]
    calls: list[Callable[[], object]] = [table.to_arrow, *(partial(call, file) for call in with_file)]
    for call in calls:
        with pytest.raises(MissingExtraError, match=r"^pyarrow not installed; .*pip install '\.\[arrow\]'$"):
            call()


def test_rows_without_draws_left_are_loaded_with_the_largest_priority(
    new_table: Callable[..., Table], client: ReplayClient, tmp_path: Path
) -> None:
    table = new_table(columns={"x": Column("int64")}, capacity=100, max_times_sampled=1)
    table.insert({"x": np.arange(6)}, priorities=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    drawn = table.sample(3).row_keys
    table.to_parquet(tmp_path / "rows.parquet")
    copy = client.load_parquet(tmp_path / "rows.parquet", name=f"{table.name}-copy")
    try:
        found = copy.read(np.arange(6)).priorities
        rest = [key for key in range(6) if key not in drawn]
        assert found[rest].tolist() == [key + 1.0 for key in rest]
        assert not np.isnan(found).any()
        assert sorted(copy.sample(6).row_keys.tolist()) == list(range(6))
    finally:
        copy.drop()


@pytest.mark.parametrize("order", ["shuffled", "by step"])
def test_steps_out_of_order_are_refused_before_a_row_is_inserted(new_table: NewTable, file: Path, order: str) -> None:
    """Every row would begin another stream, so that no window is complete."""
    source, target = new_table(**STEPS["transitions"]), new_table(**STEPS["transitions"])
    write_episodes(source, streams=3, rows=120)
    source.to_parquet(file)
    rows = pq.read_table(file)
    steps = rows["_step"].to_numpy()
    places = (
        np.random.default_rng(0).permutation(len(steps)) if order == "shuffled" else np.argsort(steps, kind="stable")
    )
    pq.write_table(rows.take(places), file)
    with pytest.raises(InvalidArgumentError, match=r"rows: expected the rows of each stream in order .* in stream \d+"):
        target.load_parquet(file)
    assert len(target) == 0
