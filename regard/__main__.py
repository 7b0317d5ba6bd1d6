"""The command `regard`, also as `python -m regard`."""

import sys
from typing import NoReturn


def run() -> NoReturn:
    try:
        from regard.cli import command
    except KeyboardInterrupt:  # nothing has begun yet
        sys.exit(130)
    command()


if __name__ == "__main__":
    run()
