"""Chat templates: render a conversation as the text that a model was trained to answer.

Templates are Jinja programs that come with untrusted models. They run in a child process with limits.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import UserError, first_line
from regard.text.sandbox import Sandbox, SandboxError

MAX_TEMPLATE = 2**20  # characters of a template
MAX_OUTPUT = 2**22  # characters that it may make of a conversation
MEMORY = 2**29  # bytes
SECONDS = 2.0  # of processor time, for one conversation
TRIAL = [{"role": "user", "content": "Hi"}]  # a conversation to try it with

Message = Mapping[str, Any]  # {"role": "user", "content": "Hi"}


class Conversation(list[Message]):
    """Messages, and what else their template may use: `tools`, or variables of its own."""

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
            self._render(TRIAL)
        except SandboxError as error:
            if error.kind in ("time", "memory"):  # it may have its reasons to refuse this conversation
                raise self._explain(error) from None

    def uses(self, variable: str) -> bool:
        """Whether the template mentions a variable."""
        return re.search(rf"\b{re.escape(variable)}\b", self.text) is not None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Render the conversation, by default up to where the model's answer begins.

        Messages are inserted unchanged: the spelling of a special token becomes that token.
        """
        try:
            return self._render(messages, add_generation_prompt)
        except SandboxError as error:
            raise self._explain(error) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"messages: not JSON ({first_line(error)}); give dicts of texts") from None

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        more = messages if isinstance(messages, Conversation) else Conversation(messages)
        variables = {
            **more.variables,
            "messages": list(map(dict, messages)),
            "tools": more.tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        _, text = self._sandbox.call(SECONDS, variables=variables, longest=MAX_OUTPUT)
        return text.decode("utf-8", "surrogatepass")

    def _explain(self, error: SandboxError, failure: str = "the chat template fails") -> UserError:
        """The error for users: where it is, and which limit it exceeded."""
        fix = "use the template of a model that you trust"
        text = {
            "time": f"the chat template takes more than {SECONDS:g} s; {fix}",
            "memory": f"the chat template takes more than {MEMORY >> 20} MiB; {fix}",
            "rejected": f"the chat template refuses this conversation: {error}",
        }.get(error.kind, f"{failure} ({error})")
        return UserError(f"{self.where}{f':{error.line}' if error.line else ''}: {text}")
