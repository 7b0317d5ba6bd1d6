"""Find the layer of a model that a parameter belongs to."""

from itertools import takewhile

from torch import nn


def layer_index(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the layer of each parameter: 0 below the blocks, i in block i of n, n + 1 above the blocks.

    Below the blocks are the modules that a model creates before its first block: embeddings and positions,
    even if tied.
    """
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    index = dict.fromkeys(model.parameters(), len(blocks) + 1)
    for module in takewhile(lambda module: module not in blocks, model.modules()):
        if not any(inner in blocks for inner in module.modules()):
            index.update(dict.fromkeys(module.parameters(), 0))
    for i, block in enumerate(blocks, 1):
        index.update(dict.fromkeys(block.parameters(), i))
    return index
