"""Chat templates and tokenizers by a grammar of hostile ones: they work, or a limit stops them."""

import tempfile
from pathlib import Path
from typing import Any

from helpers.hostile import limit_memory, status
from helpers.torture import hostile_template, hostile_tokenizer
from regard.errors import UserError
from regard.text import chat_template, tokenizer_sandbox
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer
from torture.outcome import Context, Outcome, Suite

SUITE = Suite(count=10_000, short=6, seconds=120, batch=50)
TALK = [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hi"}] * 2
TEXTS = ["a" * 3000, "ab " * 1000, "abc", " " * 3000, "é\n1"]


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    return {}


def use_template(seed: int) -> None:
    template = Template(hostile_template(seed), where="w")
    for talk in (TALK, TALK[:1]):
        assert isinstance(template.render(talk), str)


def use_tokenizer(seed: int) -> None:
    tokenizer = Tokenizer.read(hostile_tokenizer(seed), Path("w"))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        tokenizer.decode(ids[:1000])
        decoder = tokenizer.decoder()
        for id in ids[:100]:
            decoder.push(id)
    tokenizer.encode_offsets(TEXTS)


def attack(context: Context, number: int) -> Outcome:
    """Every second attack is a template; limits of time are shorter than usual, to try more of them."""
    use, seed = (use_template, use_tokenizer)[number % 2], context.seed * 1_000_003 + number // 2
    kind = use.__name__.removeprefix("use_")
    chat_template.SECONDS = tokenizer_sandbox.SECONDS = 0.1
    tokenizer_sandbox.TRIAL_SECONDS, tokenizer_sandbox.TRIAL_LENGTH = 0.05, 2**11
    before, message = status("VmRSS"), ""
    with tempfile.TemporaryDirectory() as empty:
        try:
            with limit_memory(Path(empty)):
                use(seed)
        except UserError as e:
            message = str(e)
        except Exception as e:
            return Outcome("fault", f"{kind} {seed}: {type(e).__name__}: {' '.join(str(e).split())[:500]}")
    if "\n" in message:
        return Outcome("fault", f"{kind} {seed}: not one line: {message!r}")
    end = "works" if not message else "stopped by a limit" if "takes more than" in message else "refused"
    return Outcome(f"{kind} {end}", peaks={"MiB": max(0, status("VmHWM") - before) >> 20})
