"""Metrics as TensorBoard event files, written without torch and without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from headrace.telemetry.run_files import disk_errors

# Protocol buffers make their classes at import time, where no type checker sees them.
EventProto = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
SessionLog = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
Summary = summary_pb2.Summary  # pyright: ignore[reportAttributeAccessIssue]


class TensorBoardTracker:
    """Writes a new event file into a folder.

    Args:
        folder: TensorBoard's log folder of this run.
        version: Version that the run goes on from (0: a new run); TensorBoard then hides what a killed run wrote for later steps.

    Raises:
        RunFolderError: The folder cannot be written.
    """

    def __init__(self, folder: Path, *, version: int = 0) -> None:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter((folder / name).open("wb", buffering=0))
            self._write(EventProto(file_version="brain.Event:2"))
            if version:
                self._write(EventProto(step=version + 1, session_log=SessionLog(status=SessionLog.START)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar a metric."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(EventProto(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write(event.SerializeToString())
