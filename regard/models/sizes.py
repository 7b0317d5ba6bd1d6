"""What no model can be built from."""

import math
from typing import Any


def check_sizes(config: Any, *names: str) -> None:
    """ValueError that names the setting, if a size is not positive or dropout is no share."""
    for name in names:
        if (size := getattr(config, name)) is not None and size < 1:
            raise ValueError(f"{name}={size} must be more than 0")
    for name in ("base", "eps"):
        if (number := getattr(config, name, None)) is not None and not 0 < number < math.inf:
            raise ValueError(f"{name}={number} must be more than 0")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} must be from 0 to less than 1")
