"""Answers token by token, with the model's input, so that each token can be traced as it was computed."""

from collections.abc import Iterator, Sequence
from typing import Any

from regard.cancel import check_cancelled
from regard.decode.generate import Stopper, generate
from regard.runs.model import Model
from regard.tasks.request import Prompt, Request

Event = dict[str, Any]  # as JSON


def talk(model: Model, turns: Sequence[str]) -> Iterator[Event]:
    """The answer to the last of these turns, which alternate between the user and the model.

    First the model's input, `ids` of a text or of a `source`; then the `id`, `token` and new `text` of
    each token; at the end the rest of the text. A model that does not write token by token yields only a
    text.
    """
    task = model.task
    question = task.conversation(turns) if task.converses else turns[-1]
    request = model.request([], {})
    prompts = task.prompts(question, as_user=True) if task.streams else []
    if len(prompts) != 1 or request.sampling.num_beams > 1 or request.samples > 1:
        yield {}
        (answers,) = task.answers(model.model, Request([question], request.sampling, request.stop))
        yield {"text": "\n".join(answer.text for answer in answers)}
        return
    (prompt,) = prompts
    yield {"source": list(prompt.source)} if prompt.source is not None else {"ids": prompt.ids}
    yield from write_tokens(model, prompt, request)


def write_tokens(model: Model, prompt: Prompt, request: Request) -> Iterator[Event]:
    """Each token of the answer as it is chosen, and the text that it completes."""
    tokenizer = model.task.output_tokenizer
    decoder, stopper = (
        tokenizer.decoder(prompt.ids[1:] if prompt.source is not None else ()),
        Stopper(request.stop),
    )
    sources = None if prompt.source is None else [prompt.source]
    ends = getattr(model.task, "ends", None) or model.task.end
    writer: Any = model.model
    for (token,) in generate(writer, [prompt.ids], request.sampling, sources=sources, end=ends):
        check_cancelled()
        if token is None:
            continue
        text = stopper.push(decoder.push(token))
        yield {"id": token, "token": tokenizer.tokens([token])[0], "text": text}
        if stopper.done:
            return
    yield {"text": stopper.push(decoder.finish()) + stopper.finish()}
