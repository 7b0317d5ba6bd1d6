"""Turn an input of a task into a forward call of its model, and the result into a trace."""

from typing import Any, TypeGuard, cast

from torch import Tensor, nn

from regard.decode.prompts import fit_context
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.models.base import EncoderDecoder
from regard.runs.model import Model
from regard.tasks.reading import Reading, on_device, region_names
from regard.tasks.request import Prompt
from regard.tracing.record import Recording
from regard.tracing.traces import Trace


def read_input(model: Model, input: Any) -> Reading:
    """Return the tokens that the model reads of an input, and the forward call for it."""
    if isinstance(input, str) and not input.strip():
        raise UserError("there is nothing to trace; give a text, or the path of a picture")
    if model.task.has_source or isinstance(model.model, EncoderDecoder):
        return read_pair(model, input)
    if is_ids(input):
        return read_ids(model, input)
    if isinstance(input, tuple | list):
        if not all(isinstance(text, str) for text in input):
            raise UserError("this model writes no answers to images; leave the answer out")
        input = "\t".join(input)
    return model.task.reading(model.model, input)


def is_ids(input: object) -> TypeGuard[list[int]]:
    """Return whether an input is already token ids."""
    return isinstance(input, list) and bool(input) and all(type(id) is int for id in input)


def check_ids(ids: list[int], vocab: int) -> list[int]:
    if wrong := next((id for id in ids if not 0 <= id < vocab), None):
        raise UserError(f"{wrong} is not a token id; they go from 0 to {vocab - 1}")
    return ids


def read_ids(model: Model, ids: list[int]) -> Reading:
    """Read tokens as they are, including those of a chat template, by a model that continues texts."""
    task, config = model.task, cast("Any", model.model.config)
    if not task.generates:
        raise UserError("token ids are for models that write; give this one a text")
    read = list(fit_context(check_ids(ids, config.vocab), config.context))
    (row,) = on_device(model.model, read)
    tokens = {"text": task.tokenizer.tokens(read)}
    return Reading({"text": read}, tokens, lambda: model.model(row), unread=len(ids) - len(read))


def source_prompt(model: Model, source: Any) -> Prompt:
    """The prompt before a target: of a source, or exactly these token ids."""
    if not is_ids(source):
        return model.task.source_prompt(model.model, source)
    config = cast("Any", model.model.config)
    begin = model.task.begin
    if begin is None:
        raise UserError("token ids are for models that write; give this one a text")
    return Prompt([begin], check_ids(source, config.vocab)[: config.context])


def read_pair(model: Model, input: Any) -> Reading:
    """Read a source and a target; by default, the target is the model's own answer."""
    task, module = model.task, model.model
    source, target = (input, None) if is_ids(input) else task.split_target(input)
    prompt = source_prompt(model, source)
    if is_ids(target):
        written = check_ids(target, task.output_tokenizer.vocab)
    else:
        written = write_target(model, prompt) if target is None else task.encode_target(prompt, target)
    reading = read_source(model, prompt)
    read, count = (0, 0) if is_ids(source) else task.count_tokens(source)
    reading.unread = count - read + max(0, len(written) - task.context)
    written = written[: task.context]
    target_ids = [*prompt.ids, *written[:-1]]
    for side, ids in (("target", target_ids), ("written", written)):
        reading.ids[side], reading.tokens[side] = ids, task.output_tokenizer.tokens(ids)
    inputs = source_and_target(module, prompt, target_ids)
    reading.run = lambda: module(*inputs)
    return reading


def source_and_target(module: nn.Module, prompt: Prompt, target: list[int]) -> tuple[Tensor, Tensor]:
    """Both sides as a batch of one."""
    source = prompt.source if prompt.source is not None else []
    if isinstance(source, Tensor):
        (ids,) = on_device(module, target)
        return source[None].to(ids.device), ids
    first, second = on_device(module, source, target)
    return first, second


def read_source(model: Model, prompt: Prompt) -> Reading:
    """Read the input of an encoder: ids, or an image."""
    if isinstance(prompt.source, Tensor):
        side = int(model.model.config.side)  # type: ignore[union-attr, arg-type]
        grid = side, side
        return Reading(tokens={"source": region_names(*grid)}, pixels=prompt.source, grid=grid)
    source = list(prompt.source or ())
    return Reading({"source": source}, {"source": model.task.tokenizer.tokens(source)})


def write_target(model: Model, prompt: Prompt) -> list[int]:
    """The model's own greedy answer, with its end token."""
    longest = model.generation.get("max_new_tokens", 200)
    return model.task.write_target(model.model, prompt, Sampling(temperature=0, max_new_tokens=longest))


def make_trace(model: Model, reading: Reading, recording: Recording, result: Tensor) -> Trace:
    """Make the trace of a run from its input, its records and its result."""
    tensors = {} if reading.pixels is None else {"pixels": reading.pixels}
    tensors |= recording.tensors() | name_outputs(model, reading, result)
    about: dict[str, Any] = {"kind": model.kind, "task": model.task.config.name}
    if reading.grid is not None:
        about["grid"] = list(reading.grid)
    if reading.unread:
        about["unread"] = reading.unread
    return Trace(tensors, reading.tokens, reading.ids, recording.difference, about)


def name_outputs(model: Model, reading: Reading, result: Tensor) -> dict[str, Tensor]:
    """Name the results of a run: logits and their probabilities, or a vector."""
    return model.task.outcome(result.detach()[0], reading)
