"""Answers while they are generated: chunks of text from an engine, or all at once from a thread."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from regard.decode.generate import Stopper
from regard.errors import UserError
from regard.runs.model import Model
from regard.serve.batch import EngineError, FinishReason, GenerationRequest, Output, TokenOutput
from regard.serve.engine import QueueFull
from regard.serve.errors import APIError, engine_crashed, queue_full
from regard.serve.monitoring import RequestInfo
from regard.serve.protocol import ScoredText
from regard.serve.registry import EncodedPrompt, ModelRegistry, ServedModel
from regard.tasks import Answer
from regard.tasks import Request as AnswerRequest
from regard.text.tokenizer import Tokenizer


@dataclass
class Chunk:
    """More text of one answer, and why it ended if it did."""

    index: int
    text: str = ""
    tokens: list[TokenOutput] = field(default_factory=list)  # if log-probabilities are asked for
    finish_reason: FinishReason | None = None


class Generation(Protocol):
    """The answers to a request. Answer j to prompt i has the index i * samples + j."""

    prompt_tokens: int
    first_token: float | None  # time.perf_counter() of its arrival

    @property
    def completion_tokens(self) -> int: ...
    async def wait(self) -> None:
        """Wait until there is something to read, and raise errors that occur until then."""

    def chunks(self) -> AsyncIterator[list[Chunk]]: ...
    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]: ...
    def close(self) -> None: ...


class OutputStream:
    """Tokens of one answer in, text out, up to a stop sequence. With `text_at_end`, the text comes only at
    the end, which is cheaper. `specials` are special tokens that are part of the text, by their ids."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], text_at_end: bool, specials: Mapping[int, str] = {}
    ):
        self.tokenizer, self.text_at_end = tokenizer, text_at_end and not stop and not specials
        self.specials = specials
        self.decoder, self.stopper = tokenizer.decoder(), Stopper(stop)
        self.ids: list[int] = []
        self.pending: list[TokenOutput] = []  # tokens whose text is held back
        self.finished = False

    def read(self, index: int, outputs: list[Output]) -> Chunk:
        """Everything since the last call. Tokens after a stop sequence are dropped."""
        chunk, end = Chunk(index), outputs[-1]
        if isinstance(end, str | Exception):
            outputs = outputs[:-1]
        ids = [output for output in outputs if type(output) is int]
        by_token = self.stopper.stops or self.specials or len(ids) < len(outputs)
        if not by_token:
            self.ids += ids
            chunk.text = "" if self.text_at_end else self.decoder.push_all(ids)
        else:
            for output in outputs:
                if isinstance(output, int | TokenOutput) and not self.stopper.done:
                    self.push(chunk, output)
        if self.stopper.done:
            chunk.finish_reason = "stop"
        elif isinstance(end, Exception):
            raise as_api_error(end)
        elif isinstance(end, str):
            chunk.text += self.finish()
            chunk.finish_reason = "stop" if self.stopper.done else end
        self.finished = chunk.finish_reason is not None
        if self.finished:
            chunk.tokens += self.pending
        return chunk

    def push(self, chunk: Chunk, output: int | TokenOutput) -> None:
        """Add the text of one token to a chunk, and the token itself when all its text is there."""
        if isinstance(output, TokenOutput):
            self.pending.append(output)
            if output.ends:
                return
            output = output.id
        self.ids.append(output)
        text = self.stopper.push(self.decoder.push(output) + self.specials.get(output, ""))
        chunk.text += text
        if text and not self.stopper.held:
            chunk.tokens += self.pending
            self.pending = []

    def finish(self) -> str:
        if self.text_at_end:
            return self.tokenizer.decode(self.ids)
        return self.stopper.push(self.decoder.finish()) + self.stopper.finish()


def as_api_error(error: Exception) -> APIError:
    if isinstance(error, UserError):  # an error of the request, such as a grammar that takes too long
        return APIError(400, str(error))
    return engine_crashed() if isinstance(error, EngineError) else APIError(500, str(error))


class EngineGeneration:
    """Answers from an engine, while they are generated. Call `close` unless all chunks are read."""

    def __init__(
        self,
        served: ServedModel,
        prompts: Sequence[EncodedPrompt],
        options: AnswerRequest,
        top_logprobs: int | None = None,
        text_at_end: bool = False,
        specials: Mapping[int, str] = {},
    ):
        assert served.engine is not None
        count = len(prompts) * options.samples
        self.streams = [
            OutputStream(served.output_tokenizer, options.stop, text_at_end, specials) for _ in range(count)
        ]
        self.prompt_tokens = sum(prompt.tokens for prompt in prompts)
        self.first_token: float | None = None
        self.outputs: dict[int, list[Output]] = {}  # of each answer, since they were read
        self.waiter: asyncio.Future[None] | None = None
        self.requests: list[GenerationRequest] = []
        self.engine, self.prompts, self.options = served.engine, prompts, options
        self.top_logprobs = top_logprobs

    def make_requests(self) -> list[GenerationRequest]:
        """Requests for all answers. This may take long if prompts do."""
        requests = []
        for index in range(len(self.streams)):
            prompt, sample = self.prompts[index // self.options.samples], index % self.options.samples
            request = self.engine.make_request(
                prompt.ids,
                self.options.sampling,
                partial(self.receive, index),
                source=prompt.source,
                sample=sample,
                top_logprobs=self.top_logprobs,
            )
            requests.append(request)
        return requests

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        try:
            for request in requests:
                self.engine.queue_request(request)
                self.requests.append(request)
        except QueueFull:
            self.close()
            raise queue_full() from None

    @property
    def completion_tokens(self) -> int:
        return sum(len(stream.ids) for stream in self.streams)

    def receive(self, index: int, output: Output) -> None:
        """Called in the event loop."""
        self.outputs.setdefault(index, []).append(output)
        if self.waiter is not None:
            if not self.waiter.done():
                self.waiter.set_result(None)
            self.waiter = None

    async def wait(self) -> None:
        await self.wait_for_outputs()
        for outputs in self.outputs.values():
            if isinstance(error := outputs[-1], Exception):
                raise as_api_error(error)

    async def wait_for_outputs(self) -> None:
        if not self.outputs:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.first_token is None:
            self.first_token = time.perf_counter()

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """Yield the output since the last time, until all answers are complete."""
        left = len(self.streams)
        while left:
            await self.wait_for_outputs()
            outputs, self.outputs = self.outputs, {}
            chunks = []
            for index, new in outputs.items():
                stream = self.streams[index]
                if not stream.finished:  # otherwise it was generated before the stop sequence was found
                    chunks.append(stream.read(index, new))
                    if stream.finished:
                        left -= 1
                        self.requests[index].cancel()
            yield chunks

    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]:
        """The answers to each prompt; the engine gives them no scores."""
        texts: list[ScoredText] = [
            {"text": chunk.text, "score": None, "finish_reason": chunk.finish_reason or "stop"}
            for chunk in chunks
        ]
        return [texts[i : i + samples] for i in range(0, len(texts), samples)]

    def close(self) -> None:
        for request in self.requests:
            request.cancel()


class BlockingGeneration:
    """Answers that the task computes in a thread, all at once: beam search, labels, long texts in parts."""

    prompt_tokens = completion_tokens = 0
    first_token: float | None = None  # all tokens come at once

    def __init__(
        self,
        registry: ModelRegistry,
        load: Callable[[], Model],
        inputs: Sequence[Any],
        options: AnswerRequest,
    ):
        self.registry, self.load, self.inputs, self.options = registry, load, inputs, options
        self.scored: list[list[ScoredText]] = []
        self.texts: list[str] | None = None

    async def wait(self) -> None:
        self.texts = await self.registry.run_in_thread(self.compute)

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        if self.texts is None:
            await self.wait()
        texts = self.texts or []
        yield [Chunk(i, text, [], "stop") for i, text in enumerate(texts)]

    def compute(self) -> list[str]:
        model, options = self.load(), self.options
        task = model.task
        answers = task.answers(model.model, replace(options, inputs=self.inputs))
        self.scored = [[scored_text(answer) for answer in row] for row in answers]
        texts = [answer["text"] for row in self.scored for answer in row]
        tokenizer = task.output_tokenizer
        if tokenizer is not None:
            inputs = [text for text in self.inputs if isinstance(text, str)]
            self.prompt_tokens = sum(len(task.tokenizer.encode(text)) for text in inputs)
            self.completion_tokens = sum(len(tokenizer.encode(text)) for text in texts)
        return texts

    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]:
        """The answers to each input with their scores."""
        return self.scored

    def close(self) -> None: ...


def scored_text(answer: Answer) -> ScoredText:
    row: ScoredText = {"text": answer.text, "score": answer.score}
    return row if answer.value is None else {**row, "value": answer.value}


class EmptyGeneration:
    """Answers without tokens, to prompts that are only scored."""

    completion_tokens = 0
    first_token: float | None = None

    def __init__(self, prompts: Sequence[EncodedPrompt | None], samples: int):
        self.prompt_tokens = sum(prompt.tokens for prompt in prompts if prompt is not None)
        self.count = len(prompts) * samples

    async def wait(self) -> None: ...

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        yield [Chunk(i, "", [], "length") for i in range(self.count)]

    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]:
        return [[{"text": "", "score": None}] * samples for _ in range(self.count // samples)]

    def close(self) -> None: ...


async def start_generation(
    registry: ModelRegistry,
    served: ServedModel,
    inputs: Sequence[Any],
    prompts: Sequence[EncodedPrompt | None],
    options: AnswerRequest,
    top_logprobs: int | None = None,
    text_at_end: bool = True,
    empty: bool = False,
    specials: Mapping[int, str] = {},
) -> Generation:
    """Use the engine if every input is one prompt and nothing is searched; else a thread. `specials`: see
    `OutputStream`."""
    if empty:
        return EmptyGeneration(prompts, options.samples)
    encoded = [prompt for prompt in prompts if prompt is not None]
    if options.sampling.num_beams == 1 and len(encoded) == len(inputs) and not options.options:
        generation = EngineGeneration(served, encoded, options, top_logprobs, text_at_end, specials)
        size = generation.prompt_tokens * options.samples
        generation.submit(await registry.run_sized(size, generation.make_requests))
        return generation
    if any(isinstance(text, list) and text and type(text[0]) is int for text in inputs):
        raise APIError(400, "prompt: beam search takes no token ids; give num_beams 1 or a text", "prompt")
    return BlockingGeneration(registry, lambda: served.cancellable, inputs, options)


async def collect(generation: Generation, count: int, info: RequestInfo) -> list[Chunk]:
    """Wait for the complete answers."""
    answers = [Chunk(i) for i in range(count)]
    try:
        async for chunks in generation.chunks():
            for chunk in chunks:
                answer = answers[chunk.index]
                answer.text += chunk.text
                answer.tokens += chunk.tokens
                answer.finish_reason = chunk.finish_reason
    except BaseException:
        generation.close()
        raise
    finally:
        count_tokens(generation, info)
    return answers


async def begin(generation: Generation, info: RequestInfo) -> None:
    """Wait for the first token: errors until then can still get their own HTTP status."""
    try:
        await generation.wait()
    except BaseException:
        generation.close()
        raise
    finally:
        count_tokens(generation, info)


def count_tokens(generation: Generation, info: RequestInfo) -> None:
    info.prompt_tokens, info.completion_tokens = generation.prompt_tokens, generation.completion_tokens
    if generation.completion_tokens:  # otherwise an error came first
        info.first_token = generation.first_token
