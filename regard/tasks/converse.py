"""Fine-tune a language model on conversations, in its chat template.

Shapes: B batch, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.cache import State
from regard.core.layers import Stack
from regard.core.positions import Positions
from regard.data import Corpus
from regard.data.bucketing import bucket_width
from regard.data.conversations import SYSTEM, Conversation, read_conversations
from regard.data.ragged import Ragged
from regard.data.splitting import hold_out_groups
from regard.decode.sampling import Sampling
from regard.describe.export import stacks_of
from regard.errors import UserError
from regard.tasks.batches import Batch, Samples, encode_held_out, pad_rows
from regard.tasks.chat_rows import ChatDataConfig, ChatDataset, encode_conversations
from regard.tasks.loss import IGNORED, cross_entropy, token_losses
from regard.tasks.request import DataRequest, Request
from regard.tasks.task import Task
from regard.tasks.write import WriteModel, Writer
from regard.text.chat_template import PLAIN, Template
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ConverseConfig:
    name: Literal["converse"]


class Converse(Writer[ConverseConfig, ChatDataset]):
    """`chat` for a model that continues texts: it learns the answers, and reads the rest."""

    data_config = ChatDataConfig
    builtin = ("chat.tsv",), ("chat.valid.tsv",)
    few_shapes = True
    scored_unit = "conversations"
    measures_base = True
    generation: ClassVar[dict[str, Any]] = {"max_new_tokens": 200, "temperature": 0.0}
    example = "Hi how are you"

    # Data

    @classmethod
    def read(cls, request: DataRequest[ConverseConfig]) -> Corpus:
        writer = request.base
        if not isinstance(writer, Writer):
            raise UserError("this chat is trained from a language model; give one with --from MODEL")
        tokenizer = writer.tokenizer
        task = cls(request.config, tokenizer, request.context)
        task.continue_from(writer)
        rows, limit, notes = list(read_conversations(request.paths)), request.data.held_out, list[str]()
        if request.valid:
            held = list(read_conversations(request.valid))
            if len(held) > limit:
                notes.append(f"held out: {limit:,} of {len(held):,} conversations are read (data.held_out)")
                held = [held[n * len(held) // limit] for n in range(limit)]
        else:
            share = min(request.data.holdout, limit / max(1, len(rows)))
            out = hold_out_groups([first_words(turns) for _, turns in rows], share)
            held = [row for row, is_out in zip(rows, out, strict=True) if is_out]
            rows = [row for row, is_out in zip(rows, out, strict=True) if not is_out]
        train, left_out = task.encode(rows, request.data.longest)
        if request.data.pack is not None:
            train = train.pack(min(request.data.pack, request.context))
        valid, more = encode_held_out(lambda rows: task.encode(rows, request.data.longest), held)
        return Corpus(train, valid, tokenizer, notes=left_out + notes + more)

    def continue_from(self, base: Task) -> None:
        """Take over the prompt format of another model; if it has no template, a plain one."""
        assert isinstance(base, Writer)
        self.first, self.ends = base.first, base.ends
        self.use_template(base.template or plain_template(self.tokenizer))

    def encode(
        self, rows: Sequence[tuple[str, Conversation]], longest: int | None
    ) -> tuple[ChatDataset, list[str]]:
        assert self.template is not None
        room = min(longest or self.context, self.context)
        return encode_conversations(rows, self.tokenizer, self.template, self.ends, room)

    def held_out(self, paths: Sequence[str]) -> ChatDataset:
        return self.encode(list(read_conversations(paths)), None)[0]

    def samples(self, data: ChatDataset, seed: int, rows: int, tokens: int | None) -> Samples:
        """Batches of about `rows` conversations, since a row of the data may have several."""
        return super().samples(data, seed, max(1, round(rows * len(data) / data.conversations)), tokens)

    def collate(self, data: ChatDataset, rows: np.ndarray) -> Batch:
        """The ids, attention mask, positions (if rows have several conversations) and targets, all (B, T)."""
        ids, attention_mask = pad_rows(data.ids, rows)
        learned = pad_rows(Ragged(data.learned, data.ids.lengths), rows)[0]
        following = np.where(learned, ids, IGNORED)[:, 1:]
        sides = [ids[:, :-1], attention_mask[:, 1:]]
        if data.positions is not None:
            sides.append(pad_rows(Ragged(data.positions, data.ids.lengths), rows)[0][:, :-1])
        return tuple(torch.from_numpy(np.ascontiguousarray(x)) for x in (*sides, following))

    def pad_to_bucket(self, batch: Batch) -> Batch:
        width = min(self.context, bucket_width(batch[0].shape[1]))
        fills = *[0] * (len(batch) - 1), IGNORED
        return tuple(F.pad(t, (0, width - t.shape[1]), value=v) for t, v in zip(batch, fills, strict=True))

    # Training

    def loss(self, model: WriteModel, *batch: Tensor) -> Tensor:
        """The sum over the tokens of answers, in nats. No token attends to padding, which is on the right."""
        ids, _, *positions, following = batch
        return cross_entropy(hidden_states(model, ids, *positions), model.output, following)

    def token_losses(self, model: WriteModel, *batch: Tensor) -> Tensor:
        ids, _, *positions, following = batch
        losses = token_losses(
            hidden_states(model, ids, *positions), model.output, following, model.output_bias
        )
        return losses.view_as(following)

    def preview(self, model: WriteModel, data: ChatDataset, seed: int) -> str:
        """The last message of a few conversations, and the model's answer."""
        prompts = [messages[:-1] for messages in data.examples]
        options = Sampling(**self.generation | {"max_new_tokens": 40, "seed": seed})
        answers = self.answers(model, Request(prompts, options))
        texts = [
            (messages[-1]["content"], several[0].text)
            for messages, several in zip(prompts, answers, strict=True)
        ]
        lines = [[" ".join(text.split()) for text in pair] for pair in texts]
        return "\n".join(f"{asked}\n  → {answer}" for asked, answer in lines)


def hidden_states(model: WriteModel, ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """The final hidden states (B, T, D). With positions (B, T), which begin anew with each conversation of a
    row, no conversation attends to another."""
    if positions is None:
        return model.hidden(ids)
    if not stacks_of(model):
        raise UserError("data.pack: a recurrent model would remember the conversation before; leave it out")
    conversation = (positions == 0).cumsum(1)  # (B, T)
    same = conversation[:, None, :, None] == conversation[:, None, None, :]  # (B, 1, T, T)

    def run(blocks: Stack, x: Tensor, pos: Tensor, encoding: Positions, mask: None) -> Tensor:
        return blocks(x, pos, encoding, same)

    state: Any = State([], positions=positions, run=run)
    return model.hidden(ids, state)


def first_words(turns: Conversation) -> str:
    """The first messages: conversations with the same beginning are on one side of the split."""
    return next((turn.text for turn in turns if turn.role != SYSTEM), "")


def plain_template(tokenizer: Tokenizer) -> Template:
    """A template for a model that has none."""
    if tokenizer.end is None:
        raise UserError("the tokenizer has no token that ends an answer; give a model with a chat template")
    end = tokenizer.inner.id_to_token(tokenizer.end)
    return Template(PLAIN, {"eos_token": str(end)}, "the plain chat template")
