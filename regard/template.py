"""Chat templates: a conversation as the one text that a model was taught to answer.

They are programs in Jinja's language that come with other people's models, so they run in its sandbox, and
what they may make and how long they may take has an end: all that makes things is counted, and looks at the
clock. A single step is small, as what it works on is.
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

from .errors import Mistake

LONGEST = 2**20  # characters of a template
MOST = 2**24  # characters that one run may make, passing ones too
STEP = 64  # characters: what a step, or an element of a list, counts as
SECONDS = 10.0
GROWING = {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"}  # of str
PLAIN = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse"),
    *("round", "safe", "select", "selectattr", "sort", "sum", "title", "trim", "unique", "upper"),
)

Message = Mapping[str, Any]  # {"role": "user", "content": "Hi"}


class Template:
    """A template, and the special tokens it may name, as `bos_token`; `where` it came from, for mistakes."""

    def __init__(self, text: str, specials: Mapping[str, str] | None = None, where: str = "chat_template"):
        self.text, self.specials, self.where = text, dict(specials or {}), where
        if len(text) > LONGEST:
            raise Mistake(
                f"{where}: {len(text)} characters are more than {LONGEST}; this is no chat template"
            )
        self._sandbox, self._alone = Sandbox(), threading.Lock()
        try:
            self._made = self._sandbox.made_of(text)
        except jinja2.TemplateSyntaxError as e:
            raise Mistake(
                f"{where}:{e.lineno}: not a chat template ({' '.join(str(e.message).split())})"
            ) from None
        except (SyntaxError, RecursionError, MemoryError, ValueError) as e:
            raise Mistake(f"{where}: not a chat template ({type(e).__name__})") from None

    def render(self, messages: Sequence[Message], opening: bool = True) -> str:
        """The conversation as a text; with the `opening` of the model's answer, which it then writes.

        What a message says is put in as it is: where it spells a special token, it is one.
        """
        told = {"messages": list(map(dict, messages)), "tools": None, "documents": None}
        with self._alone:
            self._sandbox.start()
            try:
                return self._made.render(self.specials | told | {"add_generation_prompt": opening})
            except Refused as e:
                raise Mistake(f"{self.where}: the chat template refuses this conversation: {e}") from None
            except Exception as e:  # whatever a program may do wrong
                why = " ".join(str(e).split())[:200] or type(e).__name__
                raise Mistake(f"{self.where}: the chat template fails ({why})") from None


class Refused(Exception):
    """A template does not want this conversation."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())[:200]


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Jinja's, with an end to what is made and to the time that it takes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[ext.loopcontrols, Generation],
            finalize=jinja2.pass_context(lambda context, value: self.told(value)),
            optimized=False,
        )
        self.start()
        self.filters: dict[str, Callable[..., Any]] = {
            name: self.counted(self.filters[name]) for name in PLAIN
        }
        self.filters |= {"join": self.join, "indent": self.indent, "replace": self.replace}
        self.filters |= {"string": self.told, "tojson": self.tojson}
        self.globals = {"range": sandbox.safe_range, "dict": dict, "namespace": Namespace}
        self.globals |= {"raise_exception": refuse, "strftime_now": strftime_now}

    def made_of(self, text: str) -> jinja2.Template:
        """A template in which all that makes things is counted."""
        tree = Counting().visit(self.parse(text))
        return jinja2.Template.from_code(self, self.compile(tree), self.globals)

    def start(self) -> None:
        self.made, self.until = 0, time.monotonic() + SECONDS

    def spend(self, many: int = STEP) -> str:
        self.made += many
        if self.made > MOST:
            raise jinja2.TemplateRuntimeError(f"it makes more than {MOST} characters, or has no end")
        if time.monotonic() > self.until:
            raise jinja2.TemplateRuntimeError(f"it takes more than {SECONDS:.0f} seconds")
        return ""

    def count(self, value: Any) -> Any:
        """A value that was made just now: characters, or elements all the way down."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(STEP * len(value))
            for part in value.values() if isinstance(value, dict) else value:
                if isinstance(part, list | tuple | dict):
                    self.count(part)
        return value

    def told(self, value: Any) -> Any:
        """What is printed: a text, and all texts inside of a list, are counted before they are joined."""
        self.spell(value)
        return str(value)

    def spell(self, value: Any) -> None:
        if isinstance(value, list | tuple | dict):
            self.spend(STEP * len(value))
            for part in [*value, *value.values()] if isinstance(value, dict) else value:
                self.spell(part)
        else:
            self.spend(len(value) if isinstance(value, str) else STEP)

    def joined(self, *values: Any) -> str:
        return "".join(map(self.told, values))

    def counted(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)  # with Jinja's marks of what it wants to be given
        def counting(*args: Any, **options: Any) -> Any:
            self.spend()
            return self.count(f(*args, **options))

        return counting

    # What Jinja asks a sandbox

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in GROWING) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **options: Any) -> Any:
        self, owner = __self, getattr(__obj, "__self__", None)
        if owner is self:  # what `Counting` has put in
            return __obj(*args)
        self.spend()
        if isinstance(owner, str) and getattr(__obj, "__name__", "") in ("replace", "join"):
            return getattr(self, __obj.__name__)(
                *([args[0], owner] if __obj.__name__ == "join" else [owner, *args])
            )
        return self.count(super().call(__context, __obj, *args, **options))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateRuntimeError("% of a text is not known; join texts with ~")
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.spend((len(left) + len(right)) * (1 if isinstance(left, str) else STEP))
        if operator == "*":
            many, one = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(many, "__len__") and isinstance(one, int):
                self.spend(max(0, len(many) * one) * (1 if isinstance(many, str) else STEP))
        bits = [value.bit_length() if isinstance(value, int) else 0 for value in (left, right)]
        if operator in ("*", "**") and (max(bits) > 1024 or (operator == "**" and bits[1] > 10)):
            raise jinja2.TemplateRuntimeError("a number that is too large")
        return self.count(super().call_binop(context, operator, left, right))

    # Filters that make long texts of short ones

    def join(self, values: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(self, attribute), values)
        parts = [self.told(value) for value in values]
        self.spend(len(d) * len(parts))
        return d.join(parts)

    def replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        text = self.told(text)
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
        """As transformers has it: unlike Jinja's own, with no care for HTML."""
        before = self.made
        self.spell(value)
        self.spend((self.made - before) * min(indent or 0, MOST) * 8)
        made = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return str(self.count(made))


class Counting(visitor.NodeTransformer):
    """Has a template call the sandbox where it makes things without being asked."""

    def generic_visit(self, node: nodes.Node, *args: Any, **options: Any) -> nodes.Node:
        super().generic_visit(node, *args, **options)
        if isinstance(node, nodes.For):
            node.body.insert(0, nodes.ExprStmt(asking("spend"), lineno=node.lineno))
        elif isinstance(node, nodes.Output):
            long = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
            if long:
                node.nodes.insert(0, asking("spend", nodes.Const(long)))
        elif isinstance(node, nodes.Concat):
            return asking("joined", *node.nodes)
        elif isinstance(node, nodes.List | nodes.Dict) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        ):
            return asking("count", node)
        return node


def asking(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


class Generation(ext.Extension):
    """{% generation %} marks what the model wrote, for those who train on it: here it is as without."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Namespace(utils.Namespace):
    """What a loop can write to; none of Python's own names, and it does not print what it holds."""

    def __init__(*args: Any, **values: Any) -> None:  # `self` may be one of the values
        self = args[0]
        utils.Namespace.__init__(self)
        for name, value in dict(*args[1:], **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.TemplateRuntimeError(f"{name} is not a name for a namespace")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def refuse(message: object = "") -> None:
    raise Refused(str(message))


def strftime_now(form: str) -> str:
    if len(form) > 100 or re.search(r"%\W*\d", form):
        raise jinja2.TemplateRuntimeError("strftime_now wants a short form without widths")
    return datetime.now().strftime(form)
