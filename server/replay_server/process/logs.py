"""Formats of the server's log.

Events carry fields: ``log.info("table %s dropped", name, extra={"table": name, "duration_s": 0.1})``. JSON shows all
fields. Text shows only those that are part of the message.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

from replay_server.files.standard_error import STANDARD_ERROR

LogFormat = Literal["text", "json"]
_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Attributes of records that are not fields of an event."""


def set_up_logging(level: str, form: LogFormat) -> None:
    """Log to standard error, from a thread; ``level`` is a name such as ``info``."""
    STANDARD_ERROR.start()
    handler = logging.StreamHandler(STANDARD_ERROR)
    handler.setFormatter(logging.Formatter(_TEXT) if form == "text" else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    """Formats each event as a JSON object on one line, with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _OWN and value != ""},
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)
