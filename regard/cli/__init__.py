"""The command line. Results go to standard output, everything else to standard error.

torch is imported inside the commands, so that --help and errors in options are answered at once.
"""

import atexit
import codecs
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from regard.cli.commands import COMMANDS, reading_settings
from regard.cli.parser import build_parser
from regard.errors import UserError, os_reason


def command() -> NoReturn:
    """Run a command as the whole process, and exit at once.

    Freeing all objects of torch one by one would take a quarter of a second.
    """
    status = 1

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader is gone
                stream.flush()
        os._exit(status)

    atexit.register(end)  # the first that is registered is called last
    try:
        main()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else e.code is not None
        raise


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command. Exit status: 0 success, 2 a user error, 130 and 143 signals, 1 anything else."""
    open_closed_streams()
    escape_unknown_characters()
    signal.signal(signal.SIGTERM, lambda *_: leave(143))  # an exception, so that partial files are removed
    try:
        options = build_parser().parse_args(arguments)
        with reading_settings(options):
            COMMANDS[options.command](options)
        sys.stdout.flush()
    except UserError as e:
        fail(str(e))
    except KeyboardInterrupt:
        leave(130)
    except BrokenPipeError:  # the reader of the output is gone, as in `regard ask ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        leave(0)
    except OSError as e:  # a folder without write permission, a name that is too long, a disk that fails
        fail(os_reason(e) if e.filename is None else f"{e.filename}: {os_reason(e)}")
    sys.exit(0)


def open_closed_streams() -> None:
    """Open standard streams that are closed as the null device, so that no other file gets their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is the stream's
            setattr(sys, name, os.fdopen(file if file <= number else os.dup2(file, number), mode))


def escape_unknown_characters() -> None:
    """Write characters that a terminal's encoding lacks as in JSON, if it is not UTF-8."""
    codecs.register_error("json", lambda error: (json_escapes(error), getattr(error, "end", 0)))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="json")


def json_escapes(error: UnicodeError) -> str:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1]


def fail(message: str) -> NoReturn:
    sys.stderr.write("regard: " + " ".join(message.split()) + "\n")  # one write: processes may fail together
    sys.exit(2)


def leave(status: int) -> NoReturn:
    sys.stderr.flush()
    sys.exit(status)
