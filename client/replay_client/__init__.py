"""Client of a prioritized experience replay server.

    from replay_client import Column, ReplayClient

    client = ReplayClient("localhost:50051")
    table = client.create_table("cartpole", columns={"obs": Column("float32", 4), ...}, capacity=1_000_000)

Actors insert with `Table.insert` or `Table.writer`. Learners draw with `Table.sample` or `Table.sampler` and update
priorities. Modules with additional dependencies must be imported explicitly: `replay_client.spaces` (columns from a
Gymnasium space), `replay_client.gymnasium` (recorded environments), `replay_client.torch` (batches as tensors),
`replay_client.jax` (batches as pytrees), and those named after other libraries. `replay_client.aio` is the client for
asyncio.
"""

from replay_proto.schema import Column, Schema
from replay_proto.steps import Derived, Discount, Mask, Next, Return, Sequences, Stack, Steps, Transitions

from replay_client._adapters import columns_from_example
from replay_client._learning.mixed import MixedKeys
from replay_client._writing.writer_stream import WriterStream
from replay_client.batch import Batch, MixedBatch, Published, RowInfo, Rows, UpdateResult
from replay_client.draws import DrawMode, WeightNorm
from replay_client.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointsOffError,
    ClosedError,
    ConcurrentUseError,
    DeadlineExceededError,
    ForkedError,
    InternalServerError,
    InvalidArgumentError,
    LimitedError,
    LocalServerError,
    MissingExtraError,
    PermissionDeniedError,
    ReplayError,
    ResourceExhaustedError,
    SequenceGapError,
    SequenceTooOldError,
    ServerStorageError,
    ServerUnavailableError,
    ShardsChangedError,
    StorageLostError,
    TableEmptyError,
    TableExistsError,
    TableNotFoundError,
    TableReplacedError,
    TableResetError,
    UnauthenticatedError,
    WriterError,
    WriterSupersededError,
    WriterUnknownError,
)
from replay_client.local_server import LocalServer
from replay_client.results.copies import Checkpoint, CheckpointTable
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection, LargestRows
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import (
    LimiterStats,
    MethodStats,
    Rates,
    ServerStats,
    Stats,
    StepStats,
    TableStats,
    TimesSampled,
)
from replay_client.security import Tls
from replay_client.sequences import hindsight_goals, sequence_priorities
from replay_client.sync.client import ReplayClient
from replay_client.sync.mixed_sampler import MixedSampler
from replay_client.sync.row_loader import RowLoader
from replay_client.sync.row_reader import RowReader
from replay_client.sync.sampler import Sampler
from replay_client.sync.shards.administration import Shards
from replay_client.sync.shards.sharded_table import ShardedTable
from replay_client.sync.table import Table
from replay_client.sync.writer import Writer

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointDamagedError",
    "CheckpointNotFoundError",
    "CheckpointTable",
    "CheckpointsOffError",
    "ClosedError",
    "Column",
    "ConcurrentUseError",
    "DeadlineExceededError",
    "Derived",
    "Discount",
    "DrawMode",
    "ForkedError",
    "Inspection",
    "InternalServerError",
    "InvalidArgumentError",
    "LargestRows",
    "LimitedError",
    "LimiterStats",
    "LocalServer",
    "LocalServerError",
    "Mask",
    "MethodStats",
    "MissingExtraError",
    "MixedBatch",
    "MixedKeys",
    "MixedSampler",
    "Next",
    "PermissionDeniedError",
    "Published",
    "Rates",
    "ReplayClient",
    "ReplayError",
    "ResourceExhaustedError",
    "Return",
    "RowInfo",
    "RowLoader",
    "RowReader",
    "Rows",
    "Sampler",
    "Schema",
    "SequenceGapError",
    "SequenceTooOldError",
    "Sequences",
    "ServerStats",
    "ServerStorageError",
    "ServerUnavailableError",
    "Shard",
    "ShardMap",
    "ShardedTable",
    "Shards",
    "ShardsChangedError",
    "Stack",
    "Stats",
    "StepStats",
    "Steps",
    "StorageLostError",
    "Table",
    "TableDescription",
    "TableEmptyError",
    "TableExistsError",
    "TableNotFoundError",
    "TableReplacedError",
    "TableResetError",
    "TableStats",
    "TimesSampled",
    "Tls",
    "Transitions",
    "UnauthenticatedError",
    "UpdateResult",
    "WeightNorm",
    "Writer",
    "WriterError",
    "WriterStream",
    "WriterSupersededError",
    "WriterUnknownError",
    "columns_from_example",
    "hindsight_goals",
    "sequence_priorities",
]
