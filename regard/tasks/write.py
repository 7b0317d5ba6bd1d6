"""Language modelling: predict the next token of running text, and so continue any text.

Shapes: B batch, T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Corpus, DataConfig, Stream, Windows, in_order, load_corpus, load_heldout
from regard.decode.generate import generate
from regard.decode.prompts import fit_context
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.models import GPT, RecurrentLM
from regard.tasks.answers import Answer, decode_hypotheses, join_text, search_beams, stream_text
from regard.tasks.batches import Batch, per_token, targets
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.loss import IGNORED, cross_entropy, token_losses
from regard.tasks.reading import Reading, on_device
from regard.tasks.request import DataRequest, Prompt, Request
from regard.tasks.task import ConfigT, DataT, Task
from regard.text.chat_template import Message, Template

TURNS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>")  # may end a turn


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    name: Literal["write"]


WriteModel = GPT | RecurrentLM


class Writer(Task[ConfigT, DataT, WriteModel]):
    """Predict the next token: the base of the tasks of models that continue texts."""

    kinds = ("gpt",)
    specials = ("<|endoftext|>",)
    generates = streams = takes_messages = True
    ask_batch_size = 64

    def setup(self) -> None:
        self.ends = () if self.tokenizer.end is None else (self.tokenizer.end,)
        self.first: list[int] = []  # before every text, if the model was trained with them

    def with_context(self, context: int) -> Self:
        other = super().with_context(context)
        other.first, other.ends = self.first, self.ends
        other.template, other.converses = self.template, self.converses
        return other

    def use_template(self, template: Template) -> None:
        """Treat texts as turns of a conversation from now on."""
        self.template, self.converses = template, True
        ends = [self.tokenizer.id(name) for name in TURNS if name in template.text]
        self.ends = tuple(dict.fromkeys([*self.ends, *(id for id in ends if id is not None)]))

    @property
    def starts(self) -> Sequence[int]:
        return self.first

    def adopt_prompt_format(
        self, begin: int | None, ends: Sequence[int], first: list[int] | None, template: Template | None
    ) -> None:
        super().adopt_prompt_format(begin, ends, first, template)
        if len(ends) > 1:
            self.ends = tuple(ends)
        usual = self.tokenizer.default_specials()
        self.first = first if first is not None else [] if set(usual) & set(self.ends) else usual
        if template is not None:
            self.use_template(template)

    @classmethod
    def add_head(cls, model: nn.Module, config: ConfigT) -> nn.Module:
        if getattr(model.config, "bidirectional", False):
            raise UserError(
                "model.bidirectional=true reads the words that it should predict; it can classify and tag, "
                "not write"
            )
        return model

    def metrics(self, loss: float, count: int, data: Any, *more: float) -> dict[str, float]:
        return per_token(loss, count, data.bytes)

    def guess(self, model: WriteModel, batches: Iterable[Batch], data: DataT) -> Guess:
        return guess_targets(batches, self.tokenizer.vocab)

    # Answers

    def stream(self, model: WriteModel, request: Request) -> Iterator[list[str]]:
        """The new text of every row, piece by piece; row i * samples + j is sample j of text i."""
        if request.sampling.num_beams > 1:
            yield from super().stream(model, request)
            return
        rows = len(request.inputs) * request.samples
        yield from stream_text(self.steps(model, request), self.tokenizer, rows, request.stop)

    def steps(self, model: WriteModel, request: Request) -> Iterator[list[int | None]]:
        """Yield the next token of every row, step by step."""
        prompts = [self.read_in(text) for text in request.inputs]
        how: dict[str, Any] = {"end": self.ends, "samples": request.samples, "cached": request.cached}
        return generate(model, prompts, request.sampling, **how)

    def answers(self, model: WriteModel, request: Request) -> list[list[Answer]]:
        samples, longest = request.samples, request.sampling.max_new_tokens
        if request.sampling.num_beams == 1:
            rows = len(request.inputs) * samples
            texts = join_text(self.steps(model, request), self.tokenizer, rows, request.stop)
            return [[Answer(text) for text in texts[i : i + samples]] for i in range(0, rows, samples)]
        if longest >= self.context:
            raise UserError(f"max_new_tokens={longest}: with beams, less than the context of {self.context}")
        prompts = [self.read_in(text)[longest - self.context :] for text in request.inputs]
        hypotheses = search_beams(model, prompts, request.sampling, self.ends, samples)
        return decode_hypotheses(hypotheses, self.tokenizer, request.stop)

    def conversation(self, turns: Sequence[str]) -> list[Message]:
        return [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]

    # Prompts

    def prompts(self, input: Any, as_user: bool = False) -> list[Prompt]:
        asks = as_user or not isinstance(input, str)
        return [Prompt(self.read_in(input) if asks else self.plain(input))]

    def prompt_of_ids(self, ids: list[int]) -> Prompt:
        return Prompt(ids)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encode a conversation up to where the model's answer begins.

        A message is {"role": "system", "user" or "assistant", "content": text}.
        """
        if self.template is None:
            raise UserError(
                "this model continues texts and has no chat template; give it a text, not a conversation"
            )
        ids = self.tokenizer.encode_spelling(self.template.render(messages))
        if not ids:
            raise UserError(f"{self.template.where}: the chat template writes no text for this conversation")
        return ids

    def read_in(self, text: str | Sequence[Message]) -> list[int]:
        """The tokens that the model reads before it writes."""
        if self.template is not None or not isinstance(text, str):
            return self.prompt([{"role": "user", "content": text}] if isinstance(text, str) else text)
        return self.plain(text)

    def plain(self, text: str) -> list[int]:
        """Encode a text to continue, without a template."""
        return self.first + self.tokenizer.encode(text) or self._blank()

    def _blank(self) -> list[int]:
        """The token before the first word: a new line, or else the end of an earlier text."""
        return self.tokenizer.encode("\n") or [self.tokenizer.end or 0]

    def count_tokens(self, input: str | Sequence[Message]) -> tuple[int, int]:
        ids = self.read_in(input)
        return len(fit_context(ids, self.context)), len(ids)

    def may_be_long(self, input: str | Sequence[Message]) -> bool:
        return super().may_be_long(input if isinstance(input, str) else str(input))

    # Looking on

    def reading(self, model: WriteModel, input: str) -> Reading:
        all_ids = self.plain(input)
        ids = list(fit_context(all_ids, self.context))
        (row,) = on_device(model, ids)
        tokens = {"text": self.tokenizer.tokens(ids)}
        return Reading({"text": ids}, tokens, lambda: model(row), unread=len(all_ids) - len(ids))

    def run_once(self, model: WriteModel, text: str) -> None:
        model(*on_device(model, self.plain(text)[-self.context :]))

    def answer_rows(self, ids: Sequence[int], count: int) -> list[int]:
        return [count - 1]


class Write(Writer[WriteConfig, Stream]):
    data_config = DataConfig
    builtin = ("write.txt", "stories.txt"), ()
    static_shapes = True
    learns_from = "probabilities"
    generation: ClassVar[dict[str, Any]] = {"max_new_tokens": 200, "temperature": 0.8}
    example = "Once upon a time"

    # Data

    @classmethod
    def read(cls, request: DataRequest[WriteConfig]) -> Corpus:
        return load_corpus(request.paths, request.valid, request.data, cls.specials, *request.tokenizers)

    def held_out(self, paths: Sequence[str]) -> Stream:
        return load_heldout(paths, self.specials, self.tokenizer)

    def samples(self, data: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        return data.windows(self.context, seed, rows if tokens is None else max(1, tokens // self.context))

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        ids = torch.from_numpy(samples.batch(rows))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def evaluation_batches(self, data: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream, every token but the first predicted once."""
        for ids, following in in_order(data, self.context, max(1, tokens // self.context)):
            yield torch.from_numpy(ids), torch.from_numpy(following)

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    def count_read(self, batch: Batch) -> dict[str, float]:
        return {"tokens": batch[0].numel()}

    # Training

    def loss(self, model: WriteModel, *batch: Tensor) -> Tensor:
        """The sum over all predictions, in nats."""
        ids, following = batch
        return cross_entropy(model.hidden(ids), model.output, following)

    def predictions(self, model: WriteModel, *batch: Tensor) -> tuple[Tensor, Tensor]:
        ids, following = batch
        return model(ids), following != IGNORED

    def token_losses(self, model: WriteModel, *batch: Tensor) -> Tensor:
        ids, following = batch
        losses = token_losses(model.hidden(ids), model.output, following, model.output_bias)
        return losses.view_as(following)

    def preview(self, model: WriteModel, data: Stream, seed: int) -> str:
        """The first words of the data, and how the model continues them."""
        opening = self.tokenizer.decode(data.read(0, min(8, len(data))))
        options = Sampling(**self.generation | {"max_new_tokens": 120, "seed": seed})
        return opening + self.answers(model, Request([opening], options))[0][0].text
