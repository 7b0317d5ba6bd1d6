"""OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions and /v1/embeddings.

An unsupported option is refused by name, never silently ignored.
"""

import base64
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.decode.grammar import Grammar
from regard.models.base import CausalLM
from regard.serve import schema
from regard.serve.endpoint import DONE, encode_event, json_endpoint, stream_response
from regard.serve.errors import APIError
from regard.serve.formats import ChatFormat, CompletionFormat, read_conversation
from regard.serve.generation import BlockingGeneration, Generation, begin, collect, start_generation
from regard.serve.monitoring import RequestInfo
from regard.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    Embedding,
    EmbeddingRequest,
    GenerateFields,
    Json,
    ModelInfo,
    Prompt,
    Usage,
    encode_parts,
    to_json,
)
from regard.serve.registry import (
    EncodedPrompt,
    ModelRegistry,
    ServedModel,
    check_ids,
    check_length,
)
from regard.serve.scoring import score_prompts
from regard.serve.structured import has_format, read_format
from regard.serve.tools import Tools, read_tools
from regard.tasks import Request as AnswerRequest
from regard.text.chat_template import Conversation

Format = CompletionFormat | ChatFormat
RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}  # variables of a chat template


class OpenAIRoutes:
    def __init__(self, registry: ModelRegistry):
        self.registry = registry
        self.created = int(time.time())

    def routes(self) -> list[Route]:
        registry, tokens = self.registry, self.registry.limits.tokens
        completions = json_endpoint(registry, schema.completion_request(tokens), self.create_completion)
        chat = json_endpoint(registry, schema.chat_request(tokens), self.create_chat_completion)
        embeddings = json_endpoint(registry, schema.EMBEDDING_REQUEST, self.create_embeddings)
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{model}", self.retrieve_model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
        ]

    def model_info(self, name: str) -> ModelInfo:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "regard"}

    async def list_models(self, request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [self.model_info(name) for name in self.registry.models]}
        )

    async def retrieve_model(self, request: Request) -> Response:
        return JSONResponse(self.model_info(self.registry.find(request.path_params["model"]).name))

    async def create_completion(self, request: Request, body: CompletionRequest) -> Response:
        served = self.find_generator(body.get("model"))
        prompts = as_batch(body["prompt"])
        top_logprobs, echo = body.get("logprobs"), body.get("echo") or False
        if body.get("best_of") not in (None, 1, body.get("n")):
            raise APIError(400, "best_of: give 1 or n, since every answer is sent", "best_of")
        if echo and top_logprobs is not None and served.model.task.has_source:
            raise APIError(400, "echo: this model's encoder reads the prompt without predicting it", "echo")
        options = generation_options(served, body, len(prompts), await self.compile(served, body))
        format = CompletionFormat(served.output_tokenizer, top_logprobs is not None, echo)
        return await self.generate(request, body, served, prompts, options, top_logprobs, format)

    async def create_chat_completion(self, request: Request, body: ChatRequest) -> Response:
        served = self.find_generator(body.get("model"))
        if body.get("max_completion_tokens") is not None:
            body["max_tokens"] = body["max_completion_tokens"]
        top_logprobs = body.get("top_logprobs") or 0 if body.get("logprobs") else None
        if top_logprobs is None and body.get("top_logprobs"):
            raise APIError(400, "top_logprobs: only together with logprobs", "top_logprobs")
        conversation, tools = await self.registry.run_sized(
            request.scope["size"],
            lambda: (
                read_conversation(served.model, body["messages"]),
                read_tools(served.model.task, cast("Json", body)),
            ),
        )
        if isinstance(conversation, Conversation):
            conversation.variables = self.template_variables(request, served, body)
            conversation.tools = body.get("tools") or [] if tools is not None else []
        if tools is not None and tools.choice == "auto" and tools.are_strict:
            request.scope["ignored"].append("tools.function.strict")  # only a required call has a grammar
        options = generation_options(served, body, 1, await self.compile(served, body, tools))
        format = ChatFormat(served.output_tokenizer, top_logprobs is not None, tools)
        return await self.generate(request, body, served, [conversation], options, top_logprobs, format)

    async def compile(
        self, served: ServedModel, body: GenerateFields, tools: Tools | None = None
    ) -> Grammar | None:
        """The grammar of an answer, if it has one. Compiled in a thread, since it may take long."""
        calls = tools is not None and tools.choice != "auto"
        if not calls and not has_format(body):
            return None

        def work() -> Grammar | None:
            try:
                required, source = tools and tools.grammar(), read_format(body)
            except RecursionError:
                raise APIError(400, "the schema is nested too deeply", "response_format") from None
            if required and source:
                message = "response_format: not with a tool that has to be called"
                raise APIError(400, message, "response_format")
            kind_and_text = required or source
            return None if kind_and_text is None else served.compile(*kind_and_text)

        return await self.registry.run_in_thread(work)

    def template_variables(self, request: Request, served: ServedModel, body: ChatRequest) -> Json:
        """Variables of the model's own chat template; unused ones are ignored."""
        variables = body.get("chat_template_kwargs") or {}
        if reserved := RESERVED & variables.keys():
            name = f"chat_template_kwargs.{min(reserved)}"
            raise APIError(400, f"{name}: this variable has its own field or meaning", "chat_template_kwargs")
        named: Json = {"reasoning_effort": body.get("reasoning_effort")}
        named["enable_thinking"] = body.get("enable_thinking")
        variables = variables | {name: value for name, value in named.items() if value is not None}
        template = served.model.task.template
        unused = [name for name in variables if template is None or not template.uses(name)]
        request.scope["ignored"] += unused
        return variables

    def find_generator(self, name: str | None) -> ServedModel:
        served = self.registry.find(name)
        if served.engine is None or served.model.task.reads != "text":
            raise APIError(400, f"{served.name} does not continue texts; use /api/ask", "model")
        return served

    async def generate(
        self,
        request: Request,
        body: GenerateFields,
        served: ServedModel,
        prompts: Sequence[Prompt | Conversation],
        options: AnswerRequest,
        top_logprobs: int | None,
        format: Format,
    ) -> Response:
        """Generate answers to all prompts, and send them at once or as a stream."""
        streams, info = bool(body.get("stream")), request.scope["request_info"]
        size = sum(map(prompt_size, prompts))
        encoded = await self.registry.encode(served, prompts, size, format.input_field)
        empty, count = body.get("max_tokens") == 0, len(prompts) * options.samples
        logprobs = 0
        if top_logprobs is not None:
            new_tokens = 0 if empty else options.sampling.max_new_tokens
            logprobs = count_logprobs(format, encoded, options.samples, new_tokens, top_logprobs)
        if isinstance(format, CompletionFormat) and format.echoes:
            await self.echo(served, prompts, encoded, options.samples, top_logprobs, format)
        first = await self.registry.run_sized(logprobs, lambda: first_events(format, count if streams else 0))
        generation = await start_generation(
            self.registry,
            served,
            prompts,
            encoded,
            options,
            top_logprobs,
            text_at_end=not streams and top_logprobs is None,
            empty=empty,
            specials=format.specials,
        )
        if isinstance(generation, BlockingGeneration):
            check_blocking(served, prompts, top_logprobs)
        info.model, info.prompt_tokens = served.name, generation.prompt_tokens
        head: Json = {"id": f"{format.id_prefix}-{info.id}", "object": format.object}
        head |= {"created": int(time.time()), "model": served.name}
        if not streams:
            answers = await collect(generation, count, info)

            def content() -> Json:
                return head | {"choices": [*map(format.choice, answers)], "usage": usage(info)}

            return await self.registry.respond(logprobs + sum(len(a.text) for a in answers), content)
        await begin(generation, info)
        stream_options = body.get("stream_options") or {}
        with_usage = stream_options.get("include_usage") or False
        if stream_options.get("continuous_usage_stats"):
            request.scope["ignored"].append("stream_options.continuous_usage_stats")
        head |= {"object": format.chunk_object} | ({"usage": None} if with_usage else {})
        events = stream_events(format, head, first, generation, with_usage)
        return stream_response(request, self.registry, generation, events)

    async def echo(
        self,
        served: ServedModel,
        prompts: Sequence[Prompt | Conversation],
        encoded: Sequence[EncodedPrompt | None],
        samples: int,
        top_logprobs: int | None,
        format: CompletionFormat,
    ) -> None:
        """Add the prompts to the answers; with their log-probabilities, if those are asked for."""

        def add_texts() -> None:
            decode = served.model.tokenizer.decode
            texts = [p if isinstance(p, str) else decode(cast("list[int]", p)) for p in prompts]
            format.echo = [text for text in texts for _ in range(samples)]

        def add_scores() -> None:
            rows = [prompt.ids for prompt in encoded if prompt is not None]
            scores = score_prompts(cast(CausalLM, served.cancellable.model), rows, top_logprobs or 0)
            format.add_prompts(rows, scores, samples)

        await self.registry.run_sized(sum(map(prompt_size, prompts)), add_texts)
        if top_logprobs is not None:
            await self.registry.run_in_thread(add_scores)

    async def create_embeddings(self, request: Request, body: EmbeddingRequest) -> Response:
        served = self.registry.find(body.get("model"))
        task, model = served.model.task, served.model.model
        if not task.embeds:
            message = f"{served.name} does not embed texts; serve a model trained with embed"
            raise APIError(400, message, "model")
        dim = model.config.dim
        if body.get("dimensions") not in (None, dim):
            raise APIError(400, f"dimensions: the vectors of this model have {dim}", "dimensions")
        inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]

        def embed() -> tuple[np.ndarray, int]:
            lengths = [len(task.tokenizer.encode(text)) for text in inputs]
            for length in lengths:
                check_length(length, task.text_limit, "input")
            return task.vectors(served.cancellable.model, inputs).numpy().astype("<f4"), sum(lengths)

        vectors, tokens = await self.registry.run_in_thread(embed)
        info = request.scope["request_info"]
        info.model, info.prompt_tokens = served.name, tokens
        in_base64 = body.get("encoding_format") == "base64"
        used: Usage = {"prompt_tokens": tokens, "total_tokens": tokens}

        def content() -> Json:
            rows = [base64.b64encode(v.tobytes()).decode() if in_base64 else v.tolist() for v in vectors]
            data: list[Embedding] = [
                {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)
            ]
            return {"object": "list", "data": data, "model": served.name, "usage": used}

        return await self.registry.respond(vectors.size, content, depth=3)


def as_batch(value: Prompt | list[Prompt]) -> list[Any]:
    """One prompt, which may be a list of token ids, or a list of them, as a list."""
    return value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]


def generation_options(
    served: ServedModel, body: GenerateFields, prompts: int, grammar: Grammar | None
) -> AnswerRequest:
    requested: Json = {name: body.get(name) for name in schema.SAMPLING} | {"grammar": grammar}
    # 0 tokens are not an option of a model: see `EmptyGeneration`
    limit = body.get("max_tokens")
    requested |= {"max_new_tokens": None if limit in (0, -1) else limit}
    requested["num_return_sequences"] = body.get("n")
    requested["min_new_tokens"] = body.get("min_tokens")
    if body.get("ignore_eos"):
        requested["min_new_tokens"] = schema.MAX_TEXT  # more than any answer has
    if (penalty := body.get("repeat_penalty")) is not None:
        requested["repetition_penalty"] = penalty
    if bias := body.get("logit_bias"):
        requested["logit_bias"] = [(int(token), value) for token, value in bias.items()]
        check_ids([int(token) for token in bias], served.output_vocab, "logit_bias")
    options = served.options(requested)
    if prompts * options.samples > schema.MAX_CHOICES:
        raise APIError(400, f"n: up to {schema.MAX_CHOICES} answers in one request", "n")
    return options


def check_blocking(
    served: ServedModel, prompts: Sequence[Prompt | Conversation], top_logprobs: int | None
) -> None:
    """Refuse options that work only with the engine."""
    if top_logprobs is not None:
        message = "logprobs: not available with beam search or texts in parts; give num_beams 1 or less text"
        raise APIError(400, message, "logprobs")
    if served.model.task.template is not None and isinstance(prompts[0], str):
        raise APIError(400, "num_beams: with this model only in a conversation", "num_beams")


def count_logprobs(
    format: Format,
    prompts: Sequence[EncodedPrompt | None],
    samples: int,
    new_tokens: int,
    top_logprobs: int,
) -> int:
    """The log-probabilities that a response may have. Each takes a hundred bytes or more, so they are
    limited."""
    tokens = len(prompts) * new_tokens
    if isinstance(format, CompletionFormat) and format.echoes:
        tokens += sum(prompt.tokens for prompt in prompts if prompt is not None)
    if (count := tokens * samples * (1 + top_logprobs)) > schema.MAX_LOGPROBS:
        message = f"logprobs: {count:,} are too many for one response; up to {schema.MAX_LOGPROBS:,} are sent"
        raise APIError(400, f"{message}: ask for fewer answers, tokens or top_logprobs", "logprobs")
    return count


def first_events(format: Format, count: int) -> list[str]:
    """The JSON that a stream sends before the first token of each answer."""
    return [encode_parts(event) for index in range(count) if (event := format.first_event(index))]


async def stream_events(
    format: Format, head: Json, first: list[str], generation: Generation, with_usage: bool
) -> AsyncIterator[bytes]:
    """Server-sent events of a stream; the last may have the usage of the generation."""
    before, after = f'data: {to_json(head)[:-1]},"choices":[', "]}\n\n"

    def encode(choices: list[str]) -> bytes:
        return "".join([before + choice + after for choice in choices]).encode()

    yield encode(first)
    async for chunks in generation.chunks():
        if choices := [choice for chunk in chunks for choice in format.choices(chunk)]:
            yield encode(choices)
    last = encode_event(head | {"choices": [], "usage": usage(generation)}) if with_usage else b""
    yield last + DONE


def usage(counted: RequestInfo | Generation) -> Usage:
    prompt, completion = counted.prompt_tokens, counted.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def prompt_size(prompt: Prompt | Conversation) -> int:
    """The size of a prompt: letters or token ids."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return len(prompt)
    return sum(len(turn["content"]) for turn in cast(Conversation, prompt))
