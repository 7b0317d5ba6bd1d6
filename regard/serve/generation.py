"""Answers while they are generated: chunks of text from an engine, or all at once from a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from regard.decode.generate import Stopper
from regard.runs.model import Model
from regard.serve.batch import EngineError, FinishReason, GenerationRequest, Output, TokenOutput
from regard.serve.engine import QueueFull
from regard.serve.errors import APIError, engine_crashed, queue_full
from regard.serve.monitoring import RequestInfo
from regard.serve.protocol import ScoredText
from regard.serve.registry import EncodedPrompt, ModelRegistry, ServedModel
from regard.tasks import Request as AnswerRequest
from regard.text.tokenizer import Tokenizer


@dataclass
class Chunk:
    """More text of one answer, and why it ended if it did."""

    index: int
    text: str = ""
    tokens: list[TokenOutput] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Generation(Protocol):
    """The answers to a request. Answer j to prompt i has the index i * samples + j."""

    prompt_tokens: int

    @property
    def completion_tokens(self) -> int: ...
    def chunks(self) -> AsyncIterator[list[Chunk]]: ...
    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]: ...
    def close(self) -> None: ...


class OutputStream:
    """Tokens of one answer in, text out, up to a stop sequence. With `whole`, the text comes only at the end,
    which is cheaper."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], text_at_end: bool):
        self.tokenizer, self.text_at_end = tokenizer, text_at_end and not stop
        self.decoder, self.stopper = tokenizer.decoder(), Stopper(stop)
        self.ids: list[int] = []
        self.pending: list[TokenOutput] = []  # tokens whose text is held back
        self.finished = False

    def push(self, token: TokenOutput) -> str:
        self.ids.append(token.id)
        self.pending.append(token)
        return "" if self.text_at_end else self.stopper.push(self.decoder.push(token.id))

    def finish(self) -> str:
        if self.text_at_end:
            return self.tokenizer.decode(self.ids)
        return self.stopper.push(self.decoder.finish()) + self.stopper.finish()

    def add_to(self, chunk: Chunk, output: TokenOutput | FinishReason) -> None:
        """Add the text of a token, or the end, to a chunk."""
        if isinstance(output, TokenOutput):
            chunk.text += self.push(output)
            chunk.finish_reason = "stop" if self.stopper.done else None
        else:
            chunk.text += self.finish()
            chunk.finish_reason = "stop" if self.stopper.done else output
        self.finished = chunk.finish_reason is not None
        if self.finished or (chunk.text and not self.stopper.held):
            chunk.tokens += self.pending
            self.pending = []


class EngineGeneration:
    """Answers as they come from an engine. Call `close` unless all chunks are read."""

    def __init__(
        self,
        served: ServedModel,
        registry: ModelRegistry,
        prompts: Sequence[EncodedPrompt],
        options: AnswerRequest,
        top_logprobs: int = 0,
        text_at_end: bool = False,
    ):
        assert served.engine is not None
        count = len(prompts) * options.samples
        self.streams = [
            OutputStream(served.output_tokenizer, options.stop, text_at_end) for _ in range(count)
        ]
        self.prompt_tokens = sum(prompt.tokens for prompt in prompts)
        self.outputs: list[tuple[int, Output]] = []
        self.ready = asyncio.Event()
        self.requests: list[GenerationRequest] = []
        try:
            for index in range(count):
                prompt, sample = prompts[index // options.samples], index % options.samples
                callback = partial(registry.bridge.put, partial(self.receive, index))
                request = served.engine.submit(
                    prompt.ids,
                    options.sampling,
                    callback,
                    source=prompt.source,
                    sample=sample,
                    top_logprobs=top_logprobs,
                )
                self.requests.append(request)
        except QueueFull:
            self.close()
            raise queue_full() from None

    @property
    def completion_tokens(self) -> int:
        return sum(len(stream.ids) for stream in self.streams)

    def receive(self, index: int, output: Output) -> None:
        self.outputs.append((index, output))
        self.ready.set()

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """What has come since the last time, until all answers are complete."""
        while not all(stream.finished for stream in self.streams):
            await self.ready.wait()
            self.ready.clear()
            outputs, self.outputs = self.outputs, []
            chunks: dict[int, Chunk] = {}
            for index, output in outputs:
                stream = self.streams[index]
                if stream.finished:  # it was generated before the stop sequence was seen
                    continue
                if isinstance(output, EngineError):
                    raise engine_crashed()
                if isinstance(output, Exception):
                    raise APIError(500, str(output))
                stream.add_to(chunks.setdefault(index, Chunk(index)), output)
                if stream.finished:
                    self.requests[index].cancel()
            yield list(chunks.values())

    def answers(self, chunks: list[Chunk], samples: int) -> list[list[ScoredText]]:
        """The answers to each prompt; the engine gives them no scores."""
        texts: list[ScoredText] = [{"text": chunk.text, "score": None} for chunk in chunks]
        return [texts[i : i + samples] for i in range(0, len(texts), samples)]

    def close(self) -> None:
        for request in self.requests:
            request.cancel()


class BlockingGeneration:
    """Answers that the task computes in a thread, all at once: beam search, labels, long texts in parts."""

    prompt_tokens = completion_tokens = 0

    def __init__(
        self,
        registry: ModelRegistry,
        load: Callable[[], Model],
        inputs: Sequence[Any],
        options: AnswerRequest,
    ):
        self.registry, self.load, self.inputs, self.options = registry, load, inputs, options
        self.scored: list[list[ScoredText]] = []

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        texts = await self.registry.run_in_thread(self.compute)
        yield [Chunk(i, text, [], "stop") for i, text in enumerate(texts)]

    def compute(self) -> list[str]:
        model, options = self.load(), self.options
        task = model.task
        answers = task.answers(model.model, replace(options, inputs=self.inputs))
        self.scored = [[{"text": a.text, "score": a.score} for a in row] for row in answers]
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


def start_generation(
    registry: ModelRegistry,
    served: ServedModel,
    inputs: Sequence[Any],
    prompts: Sequence[EncodedPrompt | None],
    options: AnswerRequest,
    top_logprobs: int = 0,
    text_at_end: bool = True,
) -> Generation:
    """Use the engine if every input is one prompt and nothing is searched; else a thread."""
    encoded = [prompt for prompt in prompts if prompt is not None]
    if options.sampling.num_beams == 1 and len(encoded) == len(inputs) and not options.options:
        return EngineGeneration(served, registry, encoded, options, top_logprobs, text_at_end)
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


async def begin(generation: Generation, info: RequestInfo) -> AsyncIterator[list[Chunk]]:
    """All chunks, once the first is there: what fails until then can still have an HTTP status of its own."""
    chunks = generation.chunks()
    try:
        first = await anext(chunks)
    except BaseException:
        generation.close()
        raise
    finally:
        count_tokens(generation, info)

    async def with_first() -> AsyncIterator[list[Chunk]]:
        yield first
        async for more in chunks:
            yield more

    return with_first()


def count_tokens(generation: Generation, info: RequestInfo) -> None:
    info.prompt_tokens, info.completion_tokens = generation.prompt_tokens, generation.completion_tokens
