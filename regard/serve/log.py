"""The log, written in a separate thread: no request ever waits for a terminal, a pipe or a disk."""

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LINES = 4096  # lines that wait to be written; further ones are dropped and counted
CLOSE_SECONDS = 1.0  # for the last lines


class LogWriter:
    """Writes lines to standard error. Lines that can't be written are dropped, and their number is logged."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue(max_lines)
        self.dropped = 0  # lines so far
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="log", daemon=True)
        self.thread.start()

    def write(self, line: str) -> None:
        """Write a line soon, or drop it; never wait."""
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            self._drop()

    def _drop(self) -> None:
        with self.lock:
            self.dropped += 1

    def close(self) -> None:
        """Wait a moment for the lines that are not written yet."""
        try:
            self.lines.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return  # the pipe is not read
        self.thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        reported = 0
        while (line := self.lines.get()) is not None:
            dropped = self.dropped
            notice = json.dumps({"log_lines_dropped": dropped - reported}) + "\n"
            if write_error(f"{notice if dropped > reported else ''}{line}\n"):
                reported = dropped
            else:
                self._drop()


def write_error(text: str) -> bool:
    """Write to standard error, past Python's buffer and its lock; False if that is not possible."""
    try:
        try:
            file = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # replaced, as in a notebook, or closed
            sys.stderr.write(text)
            return True
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(file, data) :]
    except (AttributeError, OSError, ValueError):
        return False
    return True


class LogHandler(logging.Handler):
    """Passes the records of Python's loggers to a writer."""

    def __init__(self, writer: LogWriter, pid: bool = False):
        super().__init__()
        self.writer = writer
        process = " [%(process)d]" if pid else ""
        self.setFormatter(logging.Formatter(f"%(levelname)s{process} %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.write(self.format(record))
        except Exception:
            self.handleError(record)


@contextmanager
def log_in_background(pid: bool = False) -> Iterator[LogWriter]:
    """Have all logs and warnings of this process written by a thread; with `pid`, they contain its id."""
    writer, root = LogWriter(), logging.getLogger()
    handler = LogHandler(writer, pid)
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield writer
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        writer.close()
