"""/api/ask: ask any model, as `regard ask` does. File paths are never read."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.runs.load import at_step
from regard.serve import schema
from regard.serve.endpoint import DONE, encode_event, json_endpoint, stream_response
from regard.serve.errors import APIError
from regard.serve.generation import BlockingGeneration, Generation, begin, collect, start_generation
from regard.serve.protocol import AskRequest, AskResponse
from regard.serve.registry import EncodedPrompt, ModelRegistry, ServedModel
from regard.serve.requests import FILE_FIELDS, decode_file
from regard.tasks import Request as AnswerRequest

OPTIONS = (*schema.SAMPLING, "max_new_tokens", "num_return_sequences", "prefix", "distance")

NEEDED = {
    "picture": "this model reads images; give a PNG, JPEG or WebP",
    "audio": "this model reads recordings; give a WAV file",
}


class AskRoute:
    def __init__(self, registry: ModelRegistry):
        self.registry = registry

    def route(self) -> Route:
        request_schema = schema.ask_request(self.registry.limits.tokens)
        endpoint = json_endpoint(self.registry, request_schema, self.ask, files=True)
        return Route("/api/ask", endpoint, methods=["POST"])

    async def ask(self, request: Request, body: AskRequest) -> Response:
        served = self.registry.find(body.get("model"))
        inputs = await self.read_inputs(served, body)
        options = served.options({name: body.get(name) for name in OPTIONS})
        count = len(inputs) * options.samples
        if count > schema.MAX_CHOICES:
            message = f"up to {schema.MAX_CHOICES} answers in one request"
            raise APIError(400, message, "num_return_sequences")
        streams, info = bool(body.get("stream")), request.scope["request_info"]
        generation = await self.start(served, inputs, options, body.get("checkpoint"), not streams)
        info.model = served.name
        if not streams:
            chunks = await collect(generation, count, info)
            answers = generation.answers(chunks, options.samples)
            texts = [answer["text"] for row in answers for answer in row]
            single = len(texts) == 1 and not isinstance(body.get("input"), list)
            output = texts[0] if single else texts
            response: AskResponse = {"model": served.name, "output": output, "answers": answers}
            if any(unread := await self.count_unread(served, inputs)):
                response["unread_tokens"] = unread if isinstance(body.get("input"), list) else unread[0]
            return await self.registry.respond(sum(map(len, texts)), lambda: response)
        await begin(generation, info)
        return stream_response(request, self.registry, generation, stream_events(generation))

    async def read_inputs(self, served: ServedModel, body: AskRequest) -> list[Any]:
        """Texts, or the pixels of an image or a recording."""
        text, files = body.get("input"), {"picture": body.get("picture"), "audio": body.get("audio")}
        if (name := FILE_FIELDS.get(served.model.task.reads)) is not None:
            if (file := files[name]) is None:
                raise APIError(400, f"{name}: {NEEDED[name]} in base64", name)
            return [await self.registry.run_in_thread(lambda: decode_file(served.model, file))]
        if text is None or any(file is not None for file in files.values()):
            raise APIError(400, "input: this model reads texts; give one", "input")
        return text if isinstance(text, list) else [text]

    async def count_unread(self, served: ServedModel, inputs: Sequence[Any]) -> list[int]:
        """The number of tokens of each input that the model has not read, because they do not fit."""
        task = served.model.task

        def count(text: Any) -> int:
            read, all_tokens = task.count_tokens(text) if task.may_be_long(text) else (0, 0)
            return all_tokens - read

        if not any(map(task.may_be_long, inputs)):
            return []
        return await self.registry.run_in_thread(lambda: list(map(count, inputs)))

    async def start(
        self,
        served: ServedModel,
        inputs: Sequence[Any],
        options: AnswerRequest,
        checkpoint: int | None,
        text_at_end: bool,
    ) -> Generation:
        if checkpoint is not None:
            step = checkpoint
            return BlockingGeneration(
                self.registry, lambda: at_step(served.cancellable, step), inputs, options
            )
        prompts: list[EncodedPrompt | None] = [None]
        if served.engine is not None:
            size = sum(len(text) if isinstance(text, str) else 0 for text in inputs)
            prompts = await self.registry.encode(served, inputs, size, "input", as_user=True)
        return await start_generation(
            self.registry, served, inputs, prompts, options, text_at_end=text_at_end
        )


async def stream_events(generation: Generation) -> AsyncIterator[bytes]:
    async for chunks in generation.chunks():
        yield b"".join(encode_event({"index": c.index, "text": c.text}) for c in chunks if c.text)
    yield DONE
