"""The command line. Results go to standard output, everything else to standard error.

torch is imported inside the commands, so that --help and mistakes in options are answered at once.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from regard import __version__
from regard.errors import UserError

Command = Callable[[argparse.Namespace], None]

INTEGER: dict[str, Any] = {"type": int, "metavar": "N"}
NUMBER: dict[str, Any] = {"type": float, "metavar": "X"}
REPEATED: dict[str, Any] = {"action": "append", "default": []}
ANSWER_OPTIONS: dict[str, dict[str, Any]] = {  # of `ask` and `score`, passed to the model
    "max_new_tokens": INTEGER | {"help": "generate at most N tokens"},
    "temperature": NUMBER | {"help": "sampling temperature; 0 always takes the most likely token"},
    "top_k": INTEGER | {"help": "sample from the N most likely tokens only"},
    "top_p": NUMBER | {"help": "sample from the most likely tokens whose probabilities add up to X"},
    "min_p": NUMBER | {"help": "sample from tokens at least X times as likely as the most likely one"},
    "repetition_penalty": NUMBER | {"help": "above 1 makes tokens less likely that are already in the text"},
    "no_repeat_ngram_size": INTEGER | {"help": "never generate the same N tokens twice"},
    "num_beams": INTEGER | {"help": "beam search with N beams"},
    "length_penalty": NUMBER | {"help": "for beam search; above 0 prefers longer answers"},
    "num_return_sequences": INTEGER | {"help": "return N answers to each input"},
    "stop": {"action": "append", "metavar": "TEXT", "help": "stop before this text (repeatable)"},
    "prefix": {"metavar": "TEXT", "help": "how the translation or reply begins"},
    "distance": {"choices": ["cosine", "euclidean"], "help": "distance between word vectors"},
    "seed": INTEGER | {"help": "random seed; the same seed gives the same answers"},
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command. Exit status: 0 success, 2 a user error, 130 and 143 signals, 1 anything else."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: leave(143))  # an exception, so that partial files are removed
    try:
        options.command(options)
        sys.stdout.flush()
    except UserError as e:
        fail(str(e))
    except KeyboardInterrupt:
        leave(130)
    except BrokenPipeError:  # the reader of our output is gone, as in `regard ask ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        leave(0)
    except OSError as e:  # a folder without write permission, a name that is too long
        if e.filename is None:
            raise
        fail(f"{e.filename}: {e.strerror or e}")
    sys.exit(0)


def fail(message: str) -> NoReturn:
    sys.stderr.write("regard: " + " ".join(message.split()) + "\n")  # one write: processes may fail together
    sys.exit(2)


def leave(status: int) -> NoReturn:
    sys.stderr.flush()
    sys.exit(status)


# The parser


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="regard", description="Every transformer in one small, fast, see-through codebase.")
    top.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Command, about: str) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        p.set_defaults(command=command)
        return p

    add_train_options(add("train", train, "train a model with a recipe"))
    add_ask_options(add("ask", ask, "use a model: continue a text, translate, answer, classify an image"))
    add_score_options(add("score", score, "evaluate a model on held-out data"))
    add_look_options(add("look", look, "look inside a model at work: a page in the browser, or an image"))
    add_serve_options(
        add("serve", serve, "serve models over HTTP: the page, an OpenAI-compatible API, metrics")
    )

    p = add("export", export, "write a model as a folder for other programs")
    p.add_argument("model", metavar="MODEL")
    p.add_argument("out", metavar="DIR", help="a new folder")
    formats = ["hf", "onnx", "ctranslate2"]
    p.add_argument("--to", choices=formats, default="hf", help="the format (default: hf, Hugging Face)")

    p = add("demo", demo, "train a chatbot in about a minute, ask it, and show its attention")
    p.add_argument("--out", metavar="RUN", help="the run folder (default: runs/demo)")

    p = add("bench", bench, "measure the speed of training and generation here, next to transformers")
    sizes = ["pico", "tiny", "mini", "gpt2"]
    p.add_argument("--size", choices=sizes, default="tiny", help="the model size (default: tiny)")
    p.add_argument("--seconds", **NUMBER, default=3.0, help="seconds per measurement (default: 3)")

    p = add("prepare", prepare, "tokenize a large corpus once, in parallel, into shards on disk")
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    p.add_argument("--valid", **REPEATED, metavar="FILE", help="validation data")
    add_set_option(p)
    return top


def add_set_option(p: argparse.ArgumentParser) -> None:
    p.add_argument("--set", **REPEATED, metavar="KEY=VALUE", help="change a setting, as in model.dim=256")


def add_train_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("recipe", nargs="?", metavar="RECIPE", help="name of a recipe, or a .toml file")
    sources = "files, folders, - for standard input, or hf:NAME (default: a built-in data set)"
    p.add_argument("data", nargs="*", metavar="DATA", help=sources)
    p.add_argument("--list", action="store_true", help="list the recipes")
    p.add_argument("--valid", **REPEATED, metavar="FILE", help="validation data")
    p.add_argument("--out", metavar="RUN", help="the run folder (default: runs/RECIPE)")
    p.add_argument("--from", dest="base", metavar="MODEL", help="a model to start from (fine-tuning)")
    p.add_argument("--steps", **INTEGER, help="train for N steps")
    p.add_argument("--minutes", type=float, metavar="M", help="train for M minutes")
    add_set_option(p)
    p.add_argument("--resume", action="store_true", help="resume the run in --out, or start it")


def add_ask_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", help="a run folder")
    p.add_argument("input", nargs="*", metavar="INPUT", help="texts or images (default: standard input)")
    p.add_argument("--json", action="store_true", help="print one JSON object per line")
    p.add_argument("--in", dest="within", metavar="FILE", help="search this file for the most similar lines")
    add_answer_options(p)


def add_score_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL")
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("--against", metavar="MODEL", help="another model: is the difference significant?")
    add_answer_options(p)


def add_answer_options(p: argparse.ArgumentParser) -> None:
    ensemble = "ask an ensemble with this model (repeatable)"
    p.add_argument("--with", **REPEATED, dest="ensemble", metavar="MODEL", help=ensemble)
    for name, settings in ANSWER_OPTIONS.items():
        p.add_argument("--" + name.replace("_", "-"), **settings)
    p.add_argument("--words", action="store_true", help="use the model's word vectors instead of the model")


def add_look_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL")
    p.add_argument("input", nargs="+", metavar="INPUT", help="a text or an image; several with --save .svg")
    p.add_argument("--save", metavar="FILE", help=".svg, .png, .html (the page), .safetensors (all tensors)")
    p.add_argument("--view", metavar="NAME", help="the view; a wrong name lists them")
    p.add_argument("--layer", **INTEGER, help="the layer, from 0 (default: the last)")
    p.add_argument("--head", **INTEGER, help="the head, from 0 (default: the mean of all)")
    p.add_argument("--part", metavar="NAME", help="cross, encoder or decoder, of an encoder-decoder")
    p.add_argument("--patch", **INTEGER, help="the patch of an image, row by row from 0")
    p.add_argument("--answer", metavar="TEXT", help="look at this answer instead of the model's own")
    p.add_argument("--against", **REPEATED, metavar="MODEL", help="a model to compare with (repeatable)")


def add_serve_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", nargs="+", metavar="MODEL", help="folders; a model gets the name of its folder")
    p.add_argument("--host", default="127.0.0.1", metavar="HOST", help="the address (default: 127.0.0.1)")
    p.add_argument("--port", **INTEGER, help="the port (default: 7447, or the next free one)")
    p.add_argument("--name", **REPEATED, metavar="NAME", help="another accepted host name (repeatable)")
    p.add_argument("--api-key", metavar="KEY", help="require this key from clients (or set REGARD_API_KEY)")
    p.add_argument("--places", **INTEGER, help="answers generated at once, per model (default: 32)")
    p.add_argument("--queue", **INTEGER, help="requests that may wait (default: 128)")
    p.add_argument("--max-tokens", **INTEGER, help="limit for one answer (default: 4096)")
    p.add_argument("--timeout", type=float, metavar="S", help="seconds for one answer (default: 120)")
    p.add_argument("--log", choices=["json", "none"], default="json", help="a JSON line per request, or none")


# The commands


def train(options: argparse.Namespace) -> None:
    from regard.runs import recipe

    if options.list:
        for name, about in recipe.names().items():
            print(f"{name:10} {about}")
        return
    if options.recipe is None:
        raise UserError("no RECIPE given; `regard train --list` shows them")
    if options.resume and not options.out:
        raise UserError("--resume needs the run folder; give it with --out")
    recipe.read(options.recipe)  # report a wrong name before torch is imported
    changes = recipe.assignments(options.set)
    from regard.training.build import train

    model = train(
        options.recipe,
        *options.data,
        valid=options.valid,
        out=options.out,
        base=options.base,
        steps=options.steps,
        minutes=options.minutes,
        set=changes,
        resume=options.resume,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        print(model.folder)


def load_model(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the model, or an ensemble, and the options for its answers."""
    from regard.runs.ensemble import ensemble
    from regard.runs.load import load

    model = load(options.model)
    if options.ensemble:
        model = ensemble([model, *map(load, options.ensemble)])
    if options.words:
        model = model.words()
    values = {name: getattr(options, name, None) for name in (*ANSWER_OPTIONS, "within")}
    if values["within"] is not None and "within" not in model.task.extra_options:
        raise UserError("--in needs a model that embeds texts; train one with the recipe embed")
    return model, {name: value for name, value in values.items() if value is not None}


def ask(options: argparse.Namespace) -> None:
    model, settings = load_model(options)
    if not options.input and sys.stdin.isatty():
        if settings.get("num_return_sequences", 1) > 1:
            raise UserError("--num-return-sequences is not for conversations; give INPUT or pipe lines in")
        if "within" in settings:
            raise UserError("--in is not for conversations; give INPUT or pipe lines in")
        converse(model, settings)
        return
    lines = check_inputs(options.input) if options.input else read_stdin()
    show_scores = "within" in settings or model.task.shows_scores
    one_answer = settings.get("num_return_sequences", 1) == 1 and not show_scores
    if one_answer and not options.json and len(options.input) == 1:
        print_stream(model.stream(next(lines), **settings))
        return
    while texts := list(itertools.islice(lines, model.task.ask_batch_size)):
        for text, answers in zip(texts, model.answers(texts, **settings), strict=True):
            for answer in answers:
                row = {"input": text, "output": answer.text}
                if answer.score is not None:
                    row["score"] = answer.score
                plain = f"{answer.score:.4f}\t{answer.text}" if show_scores else answer.text
                print(json.dumps(row, ensure_ascii=False) if options.json else plain)
        sys.stdout.flush()


def check_inputs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of the command line. Raise UserError if one is not UTF-8."""
    for n, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"INPUT {n} is not UTF-8; convert it, or set the terminal to UTF-8")
        yield text


def read_stdin() -> Iterator[str]:
    """Yield the lines of standard input as UTF-8, whatever the locale."""
    for n, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as e:
            byte = f"byte 0x{line[e.start]:02x}"
            raise UserError(f"standard input:{n}: {byte} is not UTF-8; convert it") from None


def print_stream(pieces: Iterable[str]) -> str:
    """Print an answer piece by piece and return it."""
    answer = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        answer += piece
    print()
    return answer


def converse(model: Any, settings: dict[str, Any]) -> None:
    """Answer line by line on a terminal, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for input()
    turns: list[str] = []  # the conversation so far, for models that chat
    for text in read_terminal():
        word, _, rest = text.strip().partition(" ")
        if word == "/reset":
            turns.clear()
        elif word == "/seed" and rest.strip().isdecimal():
            settings["seed"] = int(rest)
        elif word.startswith("/") and word[1:].isalpha():
            print("/reset starts a new conversation, /seed N sets the seed, Ctrl-D ends", file=sys.stderr)
        elif model.task.converses:
            question = model.task.conversation([*turns, text]) if text.strip() else ""
            turns += [text, print_stream(model.stream(question, **settings))]
        else:
            print_stream(model.stream(text, **settings))


def read_terminal() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def score(options: argparse.Namespace) -> None:
    from regard.runs.load import load

    model, settings = load_model(options)
    against = load(options.against) if options.against else None
    scores = model.score(*options.data, against=against, **settings)
    if options.json:
        print(json.dumps(scores))
    else:
        for name, value in scores.items():
            print(f"{name:14} {value}" if isinstance(value, str) else f"{name:14} {value:.4f}")


def look(options: argparse.Namespace) -> None:
    if options.against and options.save is not None:
        raise UserError("--against works on the page in the browser only; leave --save out")
    ending = (options.save or ".html").lower()
    if ending.endswith(".html"):
        open_page(options)
    elif ending.endswith(".safetensors"):
        save_trace(options)
    elif ending.endswith((".svg", ".png")):
        from regard.runs.load import load
        from regard.viewer import look

        settings = {name: getattr(options, name) for name in ("layer", "head", "part", "patch", "answer")}
        texts = list(check_inputs(options.input))
        look(load(options.model), texts, options.view, **settings).save(options.save)
        print(options.save)
    else:
        raise UserError(f"--save {options.save}: unknown format; use .svg, .png, .html or .safetensors")


def open_page(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or save it as one file."""
    if options.patch is not None:
        raise UserError("--patch is for images; leave it out and click a patch on the page, or save .svg")
    if len(options.input) != 1:
        raise UserError(f"the page shows one INPUT, not {len(options.input)}; --save .svg draws several")
    from regard.runs.load import load
    from regard.viewer.html import VIEWS
    from regard.viewer.session import Session

    if options.view is not None and options.view not in VIEWS:
        raise UserError(f"--view {options.view}: the page has no such view; it has {', '.join(VIEWS)}")
    settings = {name: getattr(options, name) for name in ("view", "part", "layer", "head")}
    state = {name: str(value) for name, value in settings.items() if value is not None}
    (text,) = check_inputs(options.input)
    session = Session(load(options.model), text, options.answer)
    if options.save is not None:
        session.save(options.save, state)
        print(options.save)
        return
    from regard.serve.server import serve_page

    serve_page(session.model, session, state, others=[load(folder) for folder in options.against])
    raise KeyboardInterrupt  # stopped by Ctrl-C, which the server has handled: exit with its status


def serve(options: argparse.Namespace) -> None:
    from regard.runs.load import load
    from regard.serve.registry import ServerLimits, model_names
    from regard.serve.security import SecurityConfig
    from regard.serve.server import serve_models

    asked = {name: getattr(options, name) for name in ("places", "queue", "timeout")}
    asked["tokens"] = options.max_tokens
    limits = ServerLimits(**{name: value for name, value in asked.items() if value is not None})
    key = options.api_key or os.environ.get("REGARD_API_KEY") or None
    if options.host not in ("127.0.0.1", "localhost", "::1") and key is None:
        print("whoever reaches this address may use it; --api-key asks them for a key", file=sys.stderr)
    security = SecurityConfig(
        host=options.host,
        names=frozenset(name.lower() for name in options.name),
        key=key,
        max_requests=limits.places + limits.queue,
    )
    models = {
        name: load(folder) for name, folder in zip(model_names(options.model), options.model, strict=True)
    }
    serve_models(models, security, limits, options.port, options.log == "json")


def save_trace(options: argparse.Namespace) -> None:
    """Save all tensors of a forward pass in one file."""
    for name in ("view", "head", "part", "patch"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is for images, and a trace has everything; leave it out, or save .svg")
    if len(options.input) != 1:
        raise UserError(f"a trace is of one INPUT, not {len(options.input)}; save one trace for each")
    from regard.runs.load import load
    from regard.tracing import trace

    (text,) = check_inputs(options.input)
    inputs = text if options.answer is None else (text, options.answer)
    trace(load(options.model), inputs, None if options.layer is None else [options.layer]).save(options.save)
    print(options.save)


def export(options: argparse.Namespace) -> None:
    from regard.runs.export import export
    from regard.runs.load import load

    if summary := export(load(options.model, "cpu"), options.out, options.to):
        print(summary, file=sys.stderr)
    print(options.out)


def demo(options: argparse.Namespace) -> None:
    from regard.demo import demo

    demo(options.out)


def bench(options: argparse.Namespace) -> None:
    from regard.bench import bench

    bench(options.size, options.seconds)


def prepare(options: argparse.Namespace) -> None:
    from regard.data import DataConfig, prepare
    from regard.runs import recipe
    from regard.tasks import Write

    sections = recipe.change(recipe.read("write"), recipe.assignments(options.set))
    config = recipe.fill("data", sections["data"], DataConfig)
    prepare(options.data, options.out, config, Write.specials, options.valid)
    print(options.out)
