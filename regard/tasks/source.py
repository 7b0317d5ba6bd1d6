"""The base of tasks that read a source and write a target: a translation, a reply, a caption."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from regard.data.ragged import Ragged
from regard.decode.generate import generate
from regard.decode.prompts import Writer
from regard.decode.sampling import Sampling
from regard.describe.watch import watch
from regard.errors import UserError
from regard.tasks.answers import (
    Answer,
    decode_hypotheses,
    generate_tokens,
    join_text,
    search_beams,
    stream_text,
)
from regard.tasks.batches import Batch, count_pair
from regard.tasks.loss import IGNORED
from regard.tasks.request import Prompt, Request
from regard.tasks.task import ConfigT, DataT, ModelT, Task

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65_536}  # tokens of sources answered together: more fill a GPU


class SourceTask(Task[ConfigT, DataT, ModelT]):
    """Read a source, write a target. Subclasses define the source."""

    specials: ClassVar[tuple[str, ...]] = (PAD, BEGIN, END)
    has_references = generates = has_source = streams = True
    extra_options: ClassVar[tuple[str, ...]] = ("prefix",)  # the tokens that every answer begins with
    begin: int
    end: int
    source_end: int

    def setup(self) -> None:
        writer = self.output_tokenizer
        if self.context < 2:
            raise UserError(f"a context of {self.context} has no room for a text and its end; make it longer")
        if self.tokenizer.end is None or writer.end is None:
            raise UserError(f"the tokenizer has no token that ends a text; train one with {END}")
        self.source_end, self.end = self.tokenizer.end, writer.end
        ids = (writer.id(token) for token in (BEGIN, PAD))
        self.begin = next((id for id in ids if id is not None), self.end)

    def with_context(self, context: int) -> Self:
        other = super().with_context(context)
        other.begin = self.begin
        return other

    def count_read(self, batch: Batch) -> dict[str, float]:
        return count_pair(batch)

    def collate_targets(self, ids: Ragged, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The decoder's inputs, with the first token, and its targets, with the end token: (B, T)."""
        following, counts = with_end(ids, rows, self.context, self.end)
        target = np.roll(following, 1, axis=1)
        target[:, 0] = self.begin
        following[~counts] = IGNORED
        return target, following

    # Prompts

    def parts(self, input: Any) -> list[Any]:
        """Split an input into parts that are read one by one: ids without the end token, or pixels."""
        raise NotImplementedError

    def source(self, part: Any) -> Any:
        """Encode a part for the encoder."""
        return [*part, self.source_end]

    def prompts(self, input: Any, as_user: bool = False) -> list[Prompt]:
        return [Prompt([self.begin], self.source(part)) for part in self.parts(input)]

    def prompt_of_ids(self, ids: list[int]) -> Prompt:
        return Prompt([self.begin], self.source(ids))

    def encode_target(self, prompt: Prompt, target: str) -> list[int]:
        return [*self.output_tokenizer.encode(target), self.end]

    def write_target(self, model: ModelT, prompt: Prompt, sampling: Sampling) -> list[int]:
        assert prompt.source is not None
        ((best,),) = generate_tokens(model, [prompt.ids], sampling, self.end, 1, [prompt.source])  # type: ignore[arg-type]
        return [*best.tokens, self.end]

    # Answers

    def writing_model(self, model: ModelT, request: Request) -> Writer:
        """The model that writes the answers, as the request wants it."""
        return cast(Writer, model)

    def stream(self, model: ModelT, request: Request) -> Iterator[list[str]]:
        """The answer to every row, piece by piece; row i * samples + j is sample j of input i."""
        prompts = [self.prompts(input) for input in request.inputs]
        if request.sampling.num_beams > 1 or any(len(parts) != 1 for parts in prompts):
            yield from super().stream(model, request)
            return
        prefix, rows = self._prefix(request), len(prompts) * request.samples
        prompt = self._with_prefix(prefix)
        if prefix:
            yield [prefix] * rows
        steps = generate(
            self.writing_model(model, request),
            [prompt] * len(prompts),
            request.sampling,
            sources=[part.source for (part,) in prompts],  # type: ignore[misc]
            end=self.end,
            samples=request.samples,
            cached=request.cached,
        )
        yield from stream_text(steps, self.output_tokenizer, rows, request.stop, prompt[1:])

    def answers(self, model: ModelT, request: Request) -> list[list[Answer]]:
        """Inputs of several parts are answered part by part; the prefix belongs to the first one."""
        prefix = self._prefix(request)
        parts = [
            (i, "" if n else prefix, prompt.source)
            for i, input in enumerate(request.inputs)
            for n, prompt in enumerate(self.prompts(input))
        ]
        answers: list[list[Answer]] = [[] for _ in parts]
        width, device = request.sampling.num_beams * request.samples, next(model.parameters()).device
        for begin in dict.fromkeys(begin for _, begin, _ in parts):
            numbers = [k for k, part in enumerate(parts) if part[1] == begin]
            lengths = [len(parts[k][2]) for k in numbers]  # type: ignore[arg-type]
            for group in group_by_length(lengths, width, device.type):
                sources = [parts[numbers[g]][2] for g in group]
                for g, several in zip(group, self._answer(model, sources, request, begin), strict=True):
                    answers[numbers[g]] = several
        by_input: list[list[list[Answer]]] = [[] for _ in request.inputs]
        for (i, _, _), several in zip(parts, answers, strict=True):
            by_input[i].append(several)
        return [join_parts(several, request.samples) for several in by_input]

    def _answer(self, model: ModelT, sources: list[Any], request: Request, prefix: str) -> list[list[Answer]]:
        """Answers to sources that are read together."""
        prompt, writer = self._with_prefix(prefix), self.output_tokenizer
        prompts, samples, rows = [prompt] * len(sources), request.samples, len(sources) * request.samples
        author = self.writing_model(model, request)
        if request.sampling.num_beams > 1:
            best = search_beams(author, prompts, request.sampling, self.end, samples, sources)
            answers = decode_hypotheses(best, writer, request.stop, prompt[1:])
        else:
            steps = generate(
                author, prompts, request.sampling, sources=sources, end=self.end, samples=samples
            )
            texts = join_text(steps, writer, rows, request.stop, prompt[1:])
            answers = [[Answer(t) for t in texts[i : i + samples]] for i in range(0, rows, samples)]
        return [[replace(answer, text=prefix + answer.text) for answer in several] for several in answers]

    def _prefix(self, request: Request) -> str:
        """Remove the space at the end of a prefix if the tokenizer drops it: the next word has its own."""
        prefix = request.options.get("prefix", "")
        decoded = self.output_tokenizer.decode(self.output_tokenizer.encode(prefix))
        return prefix if decoded[-1:].isspace() else prefix.rstrip()

    def _with_prefix(self, prefix: str) -> list[int]:
        prompt = [self.begin, *(self.output_tokenizer.encode(prefix) if prefix else [])]
        if len(prompt) > self.context:
            raise UserError(f"prefix: its {len(prompt) - 1} tokens do not fit the context of {self.context}")
        return prompt

    def cross_attention(self, model: ModelT, input: Any, answer: str) -> tuple[Tensor, list[str], list[str]]:
        """How each token of an answer attends to the source: weights (T, S), the mean over the heads of the
        last layer; and the tokens of both sides, T of the answer and S of the source."""
        source, written = self.source(self.parts(input)[0]), [*self.output_tokenizer.encode(answer), self.end]
        device = next(model.parameters()).device
        inputs = [source, torch.tensor([self.begin, *written[:-1]])]
        with torch.inference_mode(), watch(model) as records:
            model(*(torch.as_tensor(x)[None].to(device) for x in inputs))
        names = [name for name in records if name.endswith(("cross.f", "look"))]
        if not names:
            raise UserError("this model has no attention to show; train one with model.attention")
        weights = torch.cat([each["weights"][0].mean(0) for each in records[names[-1]]])  # (T, S)
        tokens = [] if isinstance(source, Tensor) else self.tokenizer.tokens(source)
        return weights, self.output_tokenizer.tokens(written), tokens


def with_end(
    side: Ragged, rows: np.ndarray, longest: int, end: int, newest: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Append `end` to rows of ids, and return them and their mask; long rows lose their last or first ids."""
    n = np.minimum(side.lengths[rows], longest - 1)[:, None]
    starts = side.offsets[rows + 1][:, None] - n if newest else side.offsets[rows][:, None]
    i = np.arange(n.max() + 1)
    ids = np.zeros((len(rows), len(i)), dtype=np.int64)
    ids[i < n] = side.ids[(starts + i)[i < n]]
    ids[i == n] = end
    return ids, i <= n


def group_by_length(lengths: Sequence[int], width: int, device: str = "cpu") -> Iterator[list[int]]:
    """Group the indices of sources of similar length, longest first; a group is answered together."""
    order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
    at_once = TOKENS_AT_ONCE.get(device, TOKENS_AT_ONCE["cpu"])
    while order:
        size = max(1, at_once // (lengths[order[0]] * width))
        yield order[:size]
        order = order[size:]


def join_parts(parts: list[list[Answer]], samples: int) -> list[Answer]:
    """Join the answers to the parts of an input: the best with the best, and so on."""
    if len(parts) == 1:
        return parts[0]
    answers = []
    for j in range(samples):
        several = [part[min(j, len(part) - 1)] for part in parts]
        scores = [a.score for a in several if a.score is not None]
        answers.append(Answer(" ".join(a.text for a in several), sum(scores) if scores else None))
    return answers
