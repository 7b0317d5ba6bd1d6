"""Untrained models behind a server with a key, for other people's clients."""

from dataclasses import dataclass

import pytest

from helpers.looking import reader
from helpers.schemas import untrained
from helpers.serving import serve_models
from regard.serve.registry import ServerLimits

KEY = "sesame"


@dataclass
class Address:
    url: str  # ends with /v1
    key: str = KEY


@pytest.fixture(scope="module")
def address():
    models = {
        "talker": untrained(),
        "writer": untrained("bpe", template=None),
        "embed": reader("embed", "bert"),
    }
    with serve_models(models, ServerLimits(tokens=1000), key=KEY) as server:
        yield Address(f"{server.url}v1")
