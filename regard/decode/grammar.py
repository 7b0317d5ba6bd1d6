"""Constrained decoding: an answer that matches a JSON schema, a regular expression or a grammar.

llguidance computes which tokens may follow. A grammar is untrusted: it is tried in a child process under
limits before it is compiled here, and every step has limits, too.

Shapes: V vocabulary.
"""

import json
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tokenizers

from regard.errors import UserError
from regard.text.sandbox import Sandbox, SandboxError
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_GRAMMAR = 2**16  # characters
SECONDS = 2.0  # of processor time to compile one
MEMORY = 2**30  # bytes
MAX_PLAN = 1024  # tokens that are planned ahead
MAX_FORCED = 64  # bytes that a grammar asks for at once, beside the longest tokens
MAX_ROW_SECONDS = 5.0  # of processor time for all tokens of a row
# Limits of llguidance: fuel is about 50,000 units a millisecond to compile, 14,000 in a step.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
JSON_OPTIONS: Any = {
    "whitespace_pattern": r"[ \n]{1,40}",  # between the parts
    "lenient": False,  # a keyword of a schema that is not supported is refused
}
MAX_NUMBER = 10**15  # where a schema has no limit: most programs read 1e999 as infinity
# Tokens that end JSON soonest, outside of a string and in one; after them all others, the longest first
CLOSING = [b"}", b"]", b",", b":", b'"', *(b"%d" % n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 0))], [b'"']
Kind = Literal["json", "regex", "lark"]

_sandbox: Sandbox | None = None
_sandbox_lock = threading.Lock()
_vocabularies: "weakref.WeakKeyDictionary[Tokenizer, Vocabulary]" = weakref.WeakKeyDictionary()


class Vocabulary:
    """A tokenizer's tokens as bytes, for models with logits (V,). Token V stands for the end of a text."""

    def __init__(self, tokenizer: Tokenizer, V: int):
        from llguidance import LLTokenizer, TokenizerWrapper

        self.V = V
        self.bytes = [*spell_tokens(tokenizer, V), b""]
        plain = [id for id, data in enumerate(self.bytes) if data.isascii() and data.strip() == data != b""]
        if tokenizer.decode(plain[:100]).encode() != b"".join(self.bytes[id] for id in plain[:100]):
            raise UserError(
                "this model's tokenizer puts spaces between words, so its answers can't be made to follow "
                "a schema; use a model with a tokenizer of bytes, characters or BPE"
            )
        self.inner: LLTokenizer = LLTokenizer(
            TokenizerWrapper(_Spelling(self.bytes)), n_vocab=V + 1, eos_token=V
        )
        self.has_bytes = {bytes([i]) for i in range(256)} <= set(self.bytes)
        self.closing = [rank_tokens(self.bytes[:V], closing) for closing in CLOSING]


def rank_tokens(tokens: Sequence[bytes], first: Sequence[bytes]) -> np.ndarray:
    """The order in which tokens are taken to end a text soonest."""
    ranks, last = {data: rank for rank, data in enumerate(first)}, len(first) + 1000
    return np.array([ranks.get(x, last - min(len(x), 999) if x.strip() else last) for x in tokens])


class _Spelling:
    """The interface of a tokenizer for llguidance's TokenizerWrapper."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes]):
        self.tokens, self.eos_token_id = tokens, len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]
        self.ids = {data: id for id, data in enumerate(tokens) if data}
        self.longest = max(map(len, self.ids), default=0)

    def __call__(self, data: bytes) -> list[int]:
        """Any tokens of these bytes, or of their beginning: the longest first."""
        data = data[: MAX_FORCED + 2 * self.longest]  # all of a long one would be spelled again at every step
        ids, at = [], 0
        while at < len(data):
            ends = range(min(len(data), at + self.longest), at, -1)
            end = next((end for end in ends if data[at:end] in self.ids), None)
            if end is None:
                break
            ids.append(self.ids[data[at:end]])
            at = end
        return ids


def spell_tokens(tokenizer: Tokenizer, V: int) -> list[bytes]:
    """The bytes that each token adds to a text; none for special tokens and ids without one."""
    inner, table = tokenizer.inner, tokenizer.token_bytes
    if isinstance(inner.decoder, tokenizers.decoders.ByteLevel | tokenizers.decoders.Fuse):
        return [table[id] for id in range(V)]
    tokens = [inner.id_to_token(id) or "" for id in range(V)]
    return [b"" if token in table.specials else spell_piece(token) for token in tokens]


def spell_piece(token: str) -> bytes:
    """SentencePiece's way to write a token: a space as ▁, a byte as <0x0A>."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar; `start` gives a row its own state."""

    matcher: "LLMatcher"
    vocabulary: Vocabulary
    length: int  # characters of its text

    def start(self, ends: Collection[int], limit: int) -> "GrammarState":
        return GrammarState(self, ends, limit)


class Quotes(Enum):
    """Whether the last byte was in a string of JSON."""

    OUTSIDE = 0
    INSIDE = 1
    ESCAPED = 2  # after a backslash


NEXT = {  # of a quote or a backslash; any other byte keeps it, or ends an escape
    (Quotes.OUTSIDE, ord('"')): Quotes.INSIDE,
    (Quotes.INSIDE, ord('"')): Quotes.OUTSIDE,
    (Quotes.INSIDE, ord("\\")): Quotes.ESCAPED,
}


class GrammarState:
    """The state of a row in its grammar, `limit` tokens before it must end.

    `plan` are tokens that complete the text from here within the limit. A token after which there is no
    such plan is replaced by the first one of the plan, so that a text is complete in time.
    """

    def __init__(self, grammar: Grammar, ends: Collection[int], limit: int):
        self.matcher, self.vocabulary = grammar.matcher.deep_copy(), grammar.vocabulary
        self.ends, self.left = list(ends), limit
        self.growth = grammar.length + 16  # about how much longer a plan can become with a token
        self.spent = 0.0  # seconds
        self.string, self.finished = Quotes.OUTSIDE, False
        self.plan = self._find_plan()
        self.unchecked = 0  # tokens since the plan was made

    def allowed(self) -> np.ndarray:
        """Which tokens may follow, (V,) bool."""
        mask = self._mask()
        if mask[-1]:
            mask[self.ends] = True
        return mask[:-1]

    def accept(self, token: int) -> int:
        """Take the next token, or the first one of the plan if it leads too far; return the token taken."""
        if token in self.ends and self.matcher.is_accepting():
            self.finished = True
            return token
        before = self.string
        self.left -= 1
        self._consume(token)
        if self.plan is not None and not self._has_time(len(self.plan)):
            plan = self._continue_plan(self.plan, token)
            if plan is None and not self.plan and self.ends:  # the text was complete, and there was no room
                self.finished = True
                return self.ends[0]
            if plan is None and self.plan:
                self.matcher.rollback(1)
                token, self.string = self.plan[0], before
                self._consume(token)
                plan = self.plan[1:]
            self.plan, self.unchecked = plan, 0
        accepting = self.matcher.is_accepting()
        self.finished = self.matcher.is_stopped() or (accepting and not (self.ends and self.left))
        return token

    def _has_time(self, planned: int) -> bool:
        """Return whether a plan can wait: the tokens since the last one can still be completed in time."""
        self.unchecked += 1
        longest = planned + self.unchecked * self.growth
        return self.vocabulary.has_bytes and longest < min(self.left, MAX_PLAN)

    def _continue_plan(self, plan: list[int], token: int) -> list[int] | None:
        """A plan after one more token: the rest of the last, or the same, if it still holds."""
        if self.unchecked == 1 and plan[:1] == [token]:
            return plan[1:]
        done = [*plan, self.vocabulary.V]
        same = len(plan) <= self.left and self.matcher.validate_tokens(done) == len(done)
        return plan if same else self._find_plan()

    def _find_plan(self) -> list[int] | None:
        """Find few tokens that complete the text, if they are within the limit."""
        plan: list[int] = []
        before = self.string
        while len(plan) < min(self.left, MAX_PLAN) and not self.matcher.is_accepting():
            mask = self._mask()[:-1]
            if not mask.any():
                break
            ranks = self.vocabulary.closing[self.string != Quotes.OUTSIDE]
            plan.append(int(np.where(mask, ranks, 2**31).argmin()))
            self._consume(plan[-1])
        complete = self.matcher.is_accepting()
        self.matcher.rollback(len(plan))
        self.string = before
        return plan if complete else None

    def _mask(self) -> np.ndarray:
        began = time.thread_time()
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        self.spent += time.thread_time() - began
        self._check()
        mask: np.ndarray = np.unpackbits(bits, bitorder="little")[: self.vocabulary.V + 1].astype(bool)
        return mask

    def _consume(self, token: int) -> None:
        self.matcher.consume_token(token)
        self._check()
        for byte in self.vocabulary.bytes[token]:
            same = Quotes.OUTSIDE if self.string is Quotes.OUTSIDE else Quotes.INSIDE
            self.string = NEXT.get((self.string, byte), same)

    def _check(self) -> None:
        if self.matcher.is_error() or self.spent > MAX_ROW_SECONDS:
            slow = f"it took more than {MAX_ROW_SECONDS:g} s"
            reason = first_words(self.matcher.get_error()) if self.matcher.is_error() else slow
            raise UserError(f"the schema or grammar is too complex for this model ({reason})")


def compile_grammar(kind: Kind, text: str, tokenizer: Tokenizer, V: int) -> Grammar:
    """Compile a JSON schema, a regular expression or a Lark grammar for a model with logits (V,)."""
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError:
        raise UserError("a schema or grammar needs llguidance; pip install 'regard[schema]'") from None
    if len(text) > MAX_GRAMMAR:
        raise UserError(f"a schema or grammar of {len(text):,} characters; give up to {MAX_GRAMMAR:,}")
    source = read_source(kind, text)
    try_grammar(source)
    vocabulary = _vocabularies.get(tokenizer)
    if vocabulary is None or V != vocabulary.V:
        vocabulary = _vocabularies[tokenizer] = Vocabulary(tokenizer, V)
    matcher = LLMatcher(vocabulary.inner, source, log_level=0, limits=LLParserLimits(**LIMITS))
    if matcher.is_error():
        raise UserError(f"not a schema or grammar that can be used: {first_words(matcher.get_error())}")
    grammar = Grammar(matcher, vocabulary, len(text))
    try:
        writable = bool(grammar.start([], MAX_PLAN).allowed().any())
    except UserError:  # it forces bytes that no token has
        writable = False
    if not writable:
        raise UserError('the model has no tokens for what the schema or grammar asks for, such as { or "')
    return grammar


def read_source(kind: Kind, text: str) -> str:
    """The grammar in llguidance's format."""
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "lark":
        return LLMatcher.grammar_from_lark(read_gbnf(text) if "::=" in text else text)
    try:
        schema = json.dumps(limit_numbers(json.loads(text)))
        return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not a JSON schema: {first_words(str(error))}") from None


def limit_numbers(schema: Any) -> Any:
    """Add limits to the numbers of a JSON schema."""
    if isinstance(schema, list):
        return [limit_numbers(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    limited = {
        key: value if key in ("const", "enum", "default", "examples") else limit_numbers(value)
        for key, value in schema.items()
    }
    kinds = limited.get("type")
    if kinds == "number" or (isinstance(kinds, list) and "number" in kinds):
        for name, bound in (("inimum", -MAX_NUMBER), ("aximum", MAX_NUMBER)):
            if not {f"m{name}", f"exclusiveM{name}"} & limited.keys():
                limited[f"m{name}"] = bound
    return limited


def read_gbnf(text: str) -> str:
    """Convert llama.cpp's notation of a grammar to Lark's."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark: str = any_to_lark(text)
    except Exception as error:  # the converter raises bare ones
        raise UserError(f"not a grammar in GBNF: {first_words(str(error))}") from None
    return lark


def try_grammar(source: str) -> None:
    """Compile a grammar in a child process first: refuse it if it exceeds a limit or crashes."""
    global _sandbox
    with _sandbox_lock:
        if _sandbox is None:
            _sandbox = Sandbox("grammar", b"", SECONDS, MEMORY, limits=LIMITS)
    try:
        _sandbox.call(SECONDS, grammar=source)
    except SandboxError as error:
        reason = {
            "time": f"it takes more than {SECONDS:g} s",
            "memory": f"it takes more than {MEMORY >> 20} MiB",
        }
        raise UserError(
            f"not a schema or grammar that can be used: {reason.get(error.kind, first_words(str(error)))}"
        ) from None


def first_words(message: str) -> str:
    """The first line of a message of llguidance."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:200] if lines else "unknown error"
