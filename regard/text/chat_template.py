"""Chat templates: render a conversation to the text that a model was trained to answer.

Templates are Jinja programs that come with untrusted models. They run in a child process with limits.
"""

import itertools
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import UserError, first_line
from regard.text.sandbox import Sandbox, SandboxError

MAX_TEMPLATE = 2**20  # characters of a template
MAX_OUTPUT = 2**22  # characters of a rendered conversation
MEMORY = 2**29  # bytes
SECONDS = 2.0  # of processor time, for one conversation
TRIAL = [{"role": "user", "content": "Hi"}]  # a conversation to try it with

Message = Mapping[str, Any]  # {"role": "user", "content": "Hi"}
Span = tuple[int, int]  # the beginning and the end of something in a text
Rendering = tuple[Sequence[Message], bool]  # a conversation, and whether to add the beginning of an answer

AT_ONCE = 64  # conversations that are rendered in one call
GENERATION = re.compile(r"{%[-+]?\s*generation\s*[-+]?%}")
PLAIN = """{%- for message in messages -%}
{{ message.role | capitalize + ':\n' }}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content + eos_token }}{% endgeneration %}{{ '\n\n' }}
{%- else -%}
{{ message.content + '\n\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:\n' }}{%- endif -%}
"""  # for models that have none: "User:", a new line, the text, an empty line


class Conversation(list[Message]):
    """Messages, and other inputs of their template: `tools`, or its own variables."""

    def __init__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] = (),
        variables: Mapping[str, Any] | None = None,
    ):
        super().__init__(messages)
        self.tools, self.variables = list(tools), dict(variables or {})


class Template:
    """A chat template with its special tokens, such as `bos_token`; `where` is its file, for messages."""

    def __init__(self, text: str, specials: Mapping[str, str] | None = None, where: str = "chat_template"):
        self.text, self.specials, self.where = text, dict(specials or {}), where
        if len(text) > MAX_TEMPLATE:
            raise UserError(
                f"{where}: {len(text)} characters are more than {MAX_TEMPLATE}; this is not a chat template"
            )
        content = text.encode("utf-8", "surrogatepass")
        try:
            self._sandbox = Sandbox("template", content, SECONDS, MEMORY, specials=self.specials)
        except SandboxError as error:
            raise self._explain(error, "not a chat template") from None
        try:
            self._render([(TRIAL, True)])
        except SandboxError as error:
            if error.kind in ("time", "memory"):  # a template may refuse this conversation for good reasons
                raise self._explain(error) from None

    def uses(self, variable: str) -> bool:
        """Return whether the template mentions a variable."""
        return re.search(rf"\b{re.escape(variable)}\b", self.text) is not None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Render the conversation, by default up to where the model's answer begins.

        Messages are inserted unchanged: the spelling of a special token becomes that token.
        """
        return self.render_all([(messages, add_generation_prompt)])[0]

    def render_all(self, renderings: Sequence[Rendering], **variables: str) -> list[str]:
        """Render several conversations."""
        texts: list[str] = []
        try:
            for start in range(0, len(renderings), AT_ONCE):
                texts += self._render(renderings[start : start + AT_ONCE], variables)
            return texts
        except SandboxError as error:
            raise self._explain(error) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"messages: not JSON ({first_line(error)}); give dicts of texts") from None

    def mark_answers(self, conversations: Sequence[Sequence[Message]]) -> list[list[tuple[str, list[Span]]]]:
        """Render conversations, and find the answers of the assistant in the texts.

        {% generation %} blocks mark them; without, an answer is the text after the prompt. A conversation is
        one text, or several if a template writes earlier answers differently when more follows: then each
        has one answer, its last.
        """
        if GENERATION.search(self.text):
            marks = [f"<{secrets.token_hex(16)}>" for _ in range(2)]
            names = dict(zip(("generation_begins", "generation_ends"), marks, strict=True))
            marked = self.render_all([(messages, False) for messages in conversations], **names)
            return [[cut_marks(text, *marks)] for text in marked]
        places = [(c, i) for c, m in enumerate(conversations) for i in range(1, len(m)) if is_answer(m[i])]
        renderings = [(conversations[c][: i + n], not n) for c, i in places for n in (0, 1)]
        texts = iter(self.render_all(renderings))
        rows: list[list[tuple[str, list[Span]]]] = [[] for _ in conversations]
        for (c, _), prompt, text in reversed(list(zip(places, texts, texts, strict=True))):
            if not text.startswith(prompt):
                raise UserError(
                    f"{self.where}: the chat template does not write the answer after the prompt, so the "
                    "tokens to learn are unknown; put {% generation %} around the answer in it"
                )
            span = len(prompt), len(text)
            known = next((spans for longer, spans in rows[c] if longer.startswith(text)), None)
            if known is None:
                rows[c].append((text, [span]))
            else:
                known.insert(0, span)
        return [several[::-1] for several in rows]

    def _render(self, renderings: Sequence[Rendering], more: Mapping[str, str] = {}) -> list[str]:
        variables = []
        for messages, asks in renderings:
            talk = messages if isinstance(messages, Conversation) else Conversation(messages)
            values = {"messages": list(map(dict, messages)), "tools": talk.tools or None, "documents": None}
            variables.append({**talk.variables, **values, "add_generation_prompt": asks, **more})
        reply, content = self._sandbox.call(SECONDS * len(variables), variables=variables, longest=MAX_OUTPUT)
        ends = list(itertools.accumulate(reply["lengths"], initial=0))
        return [content[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(ends)]

    def _explain(self, error: SandboxError, failure: str = "the chat template fails") -> UserError:
        """The error for users: the place, and the limit that was exceeded."""
        fix = "use the template of a model that you trust"
        text = {
            "time": f"the chat template takes more than {SECONDS:g} s; {fix}",
            "memory": f"the chat template takes more than {MEMORY >> 20} MiB; {fix}",
            "rejected": f"the chat template refuses this conversation: {error}",
        }.get(error.kind, f"{failure} ({error})")
        return UserError(f"{self.where}{f':{error.line}' if error.line else ''}: {text}")


def is_answer(message: Message) -> bool:
    return message.get("role") == "assistant" and bool(message.get("content"))


def cut_marks(text: str, begins: str, ends: str) -> tuple[str, list[Span]]:
    """Remove the marks from a text, and return the places between them."""
    parts, spans = text.split(begins), list[Span]()
    plain = parts[0]
    for part in parts[1:]:
        answer, _, rest = part.partition(ends)
        spans.append((len(plain), len(plain) + len(answer)))
        plain += answer + rest
    return plain, spans
