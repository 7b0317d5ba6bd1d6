"""Chat templates: render a conversation as the text that a model was trained to answer.

Templates are Jinja programs that come with untrusted models. They run in Jinja's sandbox, with limits on the
characters they produce and on their time: everything that produces a value is counted, and checks the clock.
A single step takes little time, because its operands are limited too.
"""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, nodes, runtime, sandbox, utils, visitor
from jinja2.parser import Parser

from regard.errors import UserError

MAX_TEMPLATE = 2**20  # characters of a template
MAX_OUTPUT = 2**24  # characters that one run may produce, intermediate values included
STEP = 64  # characters that a step, or an element of a list, counts as
MAX_SECONDS = 10.0
GROWING_METHODS = {
    "center",
    "expandtabs",
    "format",
    "format_map",
    "ljust",
    "rjust",
    "translate",
    "zfill",
}  # of str
FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse"),
    *("round", "safe", "select", "selectattr", "sort", "sum", "title", "trim", "unique", "upper"),
)

Message = Mapping[str, Any]  # {"role": "user", "content": "Hi"}


class Template:
    """A chat template with its special tokens, such as `bos_token`; `where` is its file, for messages."""

    def __init__(self, text: str, specials: Mapping[str, str] | None = None, where: str = "chat_template"):
        self.text, self.specials, self.where = text, dict(specials or {}), where
        if len(text) > MAX_TEMPLATE:
            raise UserError(
                f"{where}: {len(text)} characters are more than {MAX_TEMPLATE}; this is not a chat template"
            )
        self._sandbox, self._lock = Sandbox(), threading.Lock()
        try:
            self._template = self._sandbox.compile_template(text)
        except jinja2.TemplateSyntaxError as e:
            raise UserError(
                f"{where}:{e.lineno}: not a chat template ({' '.join(str(e.message).split())})"
            ) from None
        except (SyntaxError, RecursionError, MemoryError, ValueError) as e:
            raise UserError(f"{where}: not a chat template ({type(e).__name__})") from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Render the conversation, by default up to where the model's answer begins.

        Messages are inserted unchanged: the spelling of a special token becomes that token.
        """
        variables = {
            "messages": list(map(dict, messages)),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            self._sandbox.start()
            try:
                return self._template.render(self.specials | variables)
            except ConversationRejected as e:
                raise UserError(f"{self.where}: the chat template refuses this conversation: {e}") from None
            except Exception as e:  # a template can raise anything
                reason = " ".join(str(e).split())[:200] or type(e).__name__
                raise UserError(f"{self.where}: the chat template fails ({reason})") from None


class ConversationRejected(Exception):
    """A template called `raise_exception`."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())[:200]


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with limits on the output and the time of a run."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[ext.loopcontrols, Generation],
            finalize=jinja2.pass_context(lambda context, value: self.to_text(value)),
            optimized=False,
        )
        self.start()
        self.filters: dict[str, Callable[..., Any]] = {
            name: self.count_results(self.filters[name]) for name in FILTERS
        }
        self.filters |= {"join": self.join, "indent": self.indent, "replace": self.replace}
        self.filters |= {"string": self.to_text, "tojson": self.tojson}
        self.globals = {"range": sandbox.safe_range, "dict": dict, "namespace": Namespace}
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}

    def compile_template(self, text: str) -> jinja2.Template:
        """Compile a template in which everything that produces a value is counted."""
        tree = CountingTransformer().visit(self.parse(text))
        return jinja2.Template.from_code(self, self.compile(tree), self.globals)

    def start(self) -> None:
        """Reset the limits for a new run."""
        self.spent, self.deadline = 0, time.monotonic() + MAX_SECONDS

    def spend(self, characters: int = STEP) -> str:
        """Count characters, and raise an error if a limit is exceeded."""
        self.spent += characters
        if self.spent > MAX_OUTPUT:
            raise jinja2.TemplateRuntimeError(f"it makes more than {MAX_OUTPUT} characters, or never ends")
        if time.monotonic() > self.deadline:
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_SECONDS:.0f} seconds")
        return ""

    def count(self, value: Any) -> Any:
        """Count the characters, or the elements at any depth, of a new value; return it."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(STEP * len(value))
            for part in value.values() if isinstance(value, dict) else value:
                if isinstance(part, list | tuple | dict):
                    self.count(part)
        return value

    def to_text(self, value: Any) -> str:
        """Return str(value), after counting all texts in it."""
        self.count_text(value)
        return str(value)

    def count_text(self, value: Any) -> None:
        """Count the characters of the text of a value."""
        if isinstance(value, list | tuple | dict):
            self.spend(STEP * len(value))
            for part in [*value, *value.values()] if isinstance(value, dict) else value:
                self.count_text(part)
        else:
            self.spend(len(value) if isinstance(value, str) else STEP)

    def concat_values(self, *values: Any) -> str:
        return "".join(map(self.to_text, values))

    def count_results(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its results counted."""

        @functools.wraps(f)  # keeps the marks by which Jinja passes its context
        def wrapper(*args: Any, **options: Any) -> Any:
            self.spend()
            return self.count(f(*args, **options))

        return wrapper

    # Hooks of Jinja's sandbox

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in GROWING_METHODS) and super().is_safe_attribute(
            obj, attr, value
        )

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **options: Any) -> Any:
        self, owner = __self, getattr(__obj, "__self__", None)
        if owner is self:  # inserted by CountingTransformer
            return __obj(*args)
        self.spend()
        if isinstance(owner, str) and getattr(__obj, "__name__", "") in ("replace", "join"):
            return getattr(self, __obj.__name__)(
                *([args[0], owner] if __obj.__name__ == "join" else [owner, *args])
            )
        return self.count(super().call(__context, __obj, *args, **options))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateRuntimeError("% of a text is not supported; join texts with ~")
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.spend((len(left) + len(right)) * (1 if isinstance(left, str) else STEP))
        if operator == "*":
            sequence, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(sequence, "__len__") and isinstance(times, int):
                self.spend(max(0, len(sequence) * times) * (1 if isinstance(sequence, str) else STEP))
        bits = [value.bit_length() if isinstance(value, int) else 0 for value in (left, right)]
        if operator in ("*", "**") and (max(bits) > 1024 or (operator == "**" and bits[1] > 10)):
            raise jinja2.TemplateRuntimeError("a number that is too large")
        return self.count(super().call_binop(context, operator, left, right))

    # Filters that can make a short text long

    def join(self, values: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(self, attribute), values)
        parts = [self.to_text(value) for value in values]
        self.spend(len(d) * len(parts))
        return d.join(parts)

    def replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        text = self.to_text(text)
        self.spend(text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        self.spend((1 + text.count("\n")) * (width if isinstance(width, int) else len(width)) + len(text))
        return jinja2.filters.do_indent(text, width, first, blank)

    def tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Convert to JSON as transformers does: without escaping HTML, unlike Jinja's own filter."""
        before = self.spent
        self.count_text(value)
        self.spend((self.spent - before) * min(indent or 0, MAX_OUTPUT) * 8)
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return str(self.count(text))


class CountingTransformer(visitor.NodeTransformer):
    """Inserts calls of the sandbox where a template produces values without calling a function."""

    def generic_visit(self, node: nodes.Node, *args: Any, **options: Any) -> nodes.Node:
        super().generic_visit(node, *args, **options)
        if isinstance(node, nodes.For):
            node.body.insert(0, nodes.ExprStmt(call_sandbox("spend"), lineno=node.lineno))
        elif isinstance(node, nodes.Output):
            length = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
            if length:
                node.nodes.insert(0, call_sandbox("spend", nodes.Const(length)))
        elif isinstance(node, nodes.Concat):
            return call_sandbox("concat_values", *node.nodes)
        elif isinstance(node, nodes.List | nodes.Dict) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        ):
            return call_sandbox("count", node)
        return node


def call_sandbox(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


class Generation(ext.Extension):
    """{% generation %} marks what the model wrote, for training; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Namespace(utils.Namespace):
    """A namespace that loops can write to; no name in it begins with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:  # `self` may be one of the values
        self = args[0]
        utils.Namespace.__init__(self)
        for name, value in dict(*args[1:], **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.TemplateRuntimeError(f"{name} is not allowed as a name in a namespace")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def raise_exception(message: object = "") -> None:
    raise ConversationRejected(str(message))


def strftime_now(format: str) -> str:
    if len(format) > 100 or re.search(r"%\W*\d", format):
        raise jinja2.TemplateRuntimeError("strftime_now takes a short format without widths")
    return datetime.now().strftime(format)
