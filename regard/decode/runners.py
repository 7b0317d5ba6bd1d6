"""The runner of each model that writes on a GPU, made when it is first needed."""

import copy
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.decode.blocks import find_decoder, is_observed
from regard.decode.kernels import has_fused
from regard.decode.prompts import Writer
from regard.decode.runner import ROWS, Runner
from regard.models.base import LanguageModel

DTYPES = torch.float32, torch.bfloat16  # the precisions in which a model can write on a GPU
Weights = tuple[tuple[int, int], ...]


@dataclass
class Entry:
    runner: Runner
    weights: Weights  # the weights that it was made from
    lock: threading.Lock = field(default_factory=threading.Lock)


_entries: "WeakKeyDictionary[nn.Module, Entry]" = WeakKeyDictionary()
_dtypes: "WeakKeyDictionary[nn.Module, torch.dtype]" = WeakKeyDictionary()


def set_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Set the precision in which a model writes on a GPU, if not bfloat16."""
    _dtypes[model] = dtype


def writing_dtype(model: nn.Module) -> torch.dtype:
    """The precision in which a model writes on a GPU."""
    return _dtypes.get(model, torch.bfloat16)


def make_runner(model: Writer, slots: int) -> Runner | None:
    """Make a runner with a copy of the model's weights in the precision for writing; None if there is none.

    There is none for models that are not on such a GPU or have no decoder of known blocks that they call as
    a stack, during training, and if hooks observe or change the computation.
    """
    if not isinstance(model, nn.Module) or not can_run(model):
        return None
    if find_decoder(model) is None:
        return None
    writer = copy.deepcopy(model).to(writing_dtype(model))
    for m in writer.modules():
        m._forward_pre_hooks.clear()
    try:
        runner = Runner(cast(LanguageModel, writer.requires_grad_(False).eval()), slots)
        return runner if runner.steps.try_out() else None
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a model that calls its blocks in its own way
        return None
    except Exception as error:
        if not type(error).__module__.startswith("triton"):
            raise
        warnings.warn(
            f"the fast kernels can't be built here, so texts are written without: {error}", stacklevel=2
        )
        return None


def can_run(model: nn.Module) -> bool:
    """Return whether a model is on a GPU with our kernels, is not being trained, and has no hooks except for
    cancellation."""
    weights = list(model.parameters())
    if not weights or not all(p.is_cuda for p in weights):
        return False
    if (device := weights[0].device).type == "cuda" and not has_fused(device):
        return False
    return not is_observed(model)


def weights_of(model: nn.Module) -> Weights:
    """The addresses of the weights, and how often they were changed in place."""
    return tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())


@contextmanager
def borrow_runner(model: Writer, texts: int) -> Iterator[Runner | None]:
    """Borrow the model's runner with room for this many texts, for one user at a time, if there is one."""
    slots = next((n for n in ROWS if n >= texts), ROWS[-1])
    if not isinstance(model, nn.Module) or not can_run(model):
        yield None
        return
    entry, weights = _entries.get(model), weights_of(model)
    if entry is not None and not entry.lock.acquire(blocking=False):
        yield None
        return
    if entry is None or entry.weights != weights or len(entry.runner.buffers.tables) < slots:
        _entries.pop(model, None)
        del entry
        runner = make_runner(model, slots)
        if runner is None:
            yield None
            return
        entry = Entry(runner, weights)
        entry.lock.acquire()
        _entries[model] = entry
    try:
        yield entry.runner
        entry.runner.clear()
    except BaseException:
        _entries.pop(model, None)  # its state is undefined
        raise
    finally:
        entry.lock.release()
