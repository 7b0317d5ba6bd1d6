"""The child process of `sandbox.py`: runs the chat template or the tokenizer of one model, or compiles
grammars, under limits.

It is a script that imports nothing of regard, so that it starts quickly and stays small. Frames go both ways:
a header, then JSON, then bytes. The first one is the template or the tokenizer, all others are calls. A call
that takes more processor time than its header allows is killed by a signal.
"""

import json
import os
import signal
import struct
import sys
import threading
from array import array
from collections.abc import Callable
from datetime import datetime
from typing import Any

HEADER = struct.Struct("<dQQ")  # seconds of processor time, and the lengths of the JSON and of the bytes
OUT_OF_MEMORY = 77  # the exit status
Json = dict[str, Any]
Reply = tuple[Json, bytes]


class ConversationRejected(Exception):
    """A template called `raise_exception`."""


class ChatTemplate:
    """A Jinja template in the environment that transformers gives it, in Jinja's own sandbox."""

    threads = False

    def __init__(self) -> None:
        import pprint  # noqa: F401 - Jinja imports some modules only when it needs them; then it is too late
        import textwrap  # noqa: F401

        import jinja2.constants
        import jinja2.debug
        from jinja2 import ext, nodes, sandbox, utils
        from jinja2.parser import Parser

        class Generation(ext.Extension):
            """{% generation %} encloses the model's answers, which two variables' texts mark for training."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Parser) -> list[nodes.Node]:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                names = [nodes.Name(name, "load") for name in ("generation_begins", "generation_ends")]
                begins, ends = (nodes.Output([name], lineno=line) for name in names)
                return [begins, *body, ends]

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

        self.environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
        )
        self.environment.filters["tojson"] = dump_json
        self.environment.globals |= {
            "dict": lambda *args, **values: dict(*args, **values),
            "namespace": Namespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }
        warm_up = "{{ 'a\\n' ~ strftime_now('%c') }}"  # reads the codec of strings and the time zone
        self.environment.from_string(warm_up).render()

    def load(self, setup: Json, content: bytes) -> Reply:
        self.template = self.environment.from_string(content.decode("utf-8", "surrogatepass"))
        self.specials = setup["specials"]
        return {}, b""

    def call(self, request: Json, content: bytes) -> Reply:
        """Render several conversations, and return their texts and sizes in bytes."""
        texts = []
        for variables in request["variables"]:
            text = self.template.render(self.specials | variables)
            if len(text) > request["longest"]:
                raise ValueError(f"it makes {len(text)} characters, more than {request['longest']}")
            texts.append(text.encode("utf-8", "surrogatepass"))
        return {"lengths": list(map(len, texts))}, b"".join(texts)


class Tokenizer:
    """A tokenizer of the `tokenizers` library."""

    threads = True

    def __init__(self) -> None:
        import tokenizers

        self.read = tokenizers.Tokenizer.from_str

    def load(self, setup: Json, content: bytes) -> Reply:
        self.inner = self.read(content.decode())
        self.inner.no_truncation()
        self.inner.no_padding()
        return {}, b""

    def call(self, request: Json, content: bytes) -> Reply:
        """Return the number of tokens of each text, the ids of all, and their places if requested."""
        self.inner.encode_special_tokens = not request["spelled"]
        offsets = request["offsets"]
        encode = self.inner.encode_batch if offsets else self.inner.encode_batch_fast
        encodings = encode(request["texts"], add_special_tokens=request["specials"])
        ids = array("i", (id for encoding in encodings for id in encoding.ids))
        places = array("i", (place for e in encodings if offsets for both in e.offsets for place in both))
        return {"lengths": list(map(len, encodings))}, ids.tobytes() + places.tobytes()


class Grammar:
    """Compiles grammars of llguidance, each for a tokenizer of bytes, to check that it can be compiled."""

    threads = True

    def __init__(self) -> None:
        import llguidance

        self.eos_token_id, self.bos_token_id = 256, None
        self.tokens = [*(bytes([i]) for i in range(256)), b""]
        self.special_token_ids = [self.eos_token_id]
        self.library = llguidance
        wrapped = llguidance.TokenizerWrapper(self)
        self.tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=257, eos_token=256)

    def __call__(self, data: bytes) -> list[int]:
        return list(data)

    def load(self, setup: Json, content: bytes) -> Reply:
        self.limits = self.library.LLParserLimits(**setup["limits"])
        return {}, b""

    def call(self, request: Json, content: bytes) -> Reply:
        """Compile with half of the usual stack, so that a grammar that works here works in any thread."""
        errors: list[str] = []

        def work() -> None:
            matcher = self.library.LLMatcher(
                self.tokenizer, request["grammar"], log_level=0, limits=self.limits
            )
            matcher.compute_bitmask()
            errors.append(matcher.get_error())

        threading.stack_size(2**22)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors != [""]:
            raise ValueError(errors[0] if errors else "it can't be compiled")
        return {}, b""


PROGRAMS: dict[str, Callable[[], ChatTemplate | Tokenizer | Grammar]] = {
    "template": ChatTemplate,
    "tokenizer": Tokenizer,
    "grammar": Grammar,
}


def raise_exception(message: object = "") -> None:
    raise ConversationRejected(str(message))


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def dump_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Convert to JSON as transformers does: without escaping HTML, unlike Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def read_exactly(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(0, min(count - len(data), 2**20))
        if not chunk:  # the parent has closed the pipe, or is gone
            sys.exit(0)
        data += chunk
    return bytes(data)


def read_frame() -> tuple[Json, bytes]:
    """Read a frame and start its timer, whose signal always kills this process."""
    seconds, length, size = HEADER.unpack(read_exactly(HEADER.size))
    text, content = read_exactly(length), read_exactly(size)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    return json.loads(text.decode("utf-8", "surrogatepass")), content


def encode_frame(reply: Json, content: bytes = b"") -> bytes:
    text = json.dumps(reply).encode()
    return HEADER.pack(0, len(text), len(content)) + text + content


def describe_error(error: BaseException) -> Json:
    text = str(getattr(error, "message", None) or error)  # Jinja adds places to its own
    kind = "rejected" if isinstance(error, ConversationRejected) else "failed"
    line = getattr(error, "lineno", None) if hasattr(error, "message") else None
    return {"error": kind, "message": " ".join(text.split())[:200] or type(error).__name__, "line": line}


def set_limits(memory: int, files: int, threads: bool) -> None:
    """Limit the memory. From now on, no file or socket can be opened, and no process started."""
    import resource  # not on Windows, where the parent imports this module as well

    limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":  # others refuse it, or ignore it
        limits[resource.RLIMIT_AS] = memory
    if not threads:
        limits[resource.RLIMIT_NPROC] = 0
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def main() -> None:
    kind, memory, paths = sys.argv[1:]
    sys.path[:] = json.loads(paths)
    replies = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with replies
    try:
        program = PROGRAMS[kind]()
    except ImportError as error:
        read_frame()
        os.write(replies, encode_frame(describe_error(error)))
        return
    set_limits(int(memory), replies + 1, program.threads)
    run: Callable[[Json, bytes], Reply] = program.load
    while True:
        try:
            frame = memoryview(encode_frame(*run(*read_frame())))
        except SystemExit:
            raise
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except BaseException as error:  # a template can raise anything, and a tokenizer may panic
            frame = memoryview(encode_frame(describe_error(error)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        while frame:
            frame = frame[os.write(replies, frame) :]
        run = program.call


if __name__ == "__main__":
    main()
