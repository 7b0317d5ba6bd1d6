"""What each command does."""

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from regard.cli.parser import ANSWER_OPTIONS, READING
from regard.errors import UserError


@contextlib.contextmanager
def reading_settings(options: argparse.Namespace) -> Iterator[None]:
    """Apply --set of a command that reads files without a recipe."""
    if options.command not in READING or not options.set:
        yield
        return
    from regard.data import files
    from regard.runs import recipe

    sections = recipe.change({"data": {}}, recipe.assignments(options.set))
    with files.read_together(recipe.fill("data", sections["data"], files.ReadConfig).max_bytes):
        yield


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

    model = load(options.model, dtype=options.dtype)
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
    inputs = model.task.join_arguments(list(check_inputs(options.input)))
    lines = iter(inputs) if inputs else read_stdin()
    show_scores = "within" in settings or model.task.shows_scores
    one_answer = settings.get("num_return_sequences", 1) == 1 and not show_scores
    if one_answer and not options.json and len(inputs) == 1:
        print_stream(model.stream(next(lines), **settings))
        return
    while texts := list(itertools.islice(lines, model.task.ask_batch_size)):
        for text, answers in zip(texts, model.answers(texts, **settings), strict=True):
            for answer in answers:
                row = {"input": text, "output": answer.text}
                if answer.score is not None:
                    row["score"] = answer.score
                scored = show_scores and answer.score is not None
                plain = f"{answer.score:.4f}\t{answer.text}" if scored else answer.text
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
    from regard.draw.picture import check_suffix, draw
    from regard.draw.plots import position_curves
    from regard.runs.load import load
    from regard.runs.score import loss_table

    if options.save:
        check_suffix(options.save)  # before a long computation
    model, settings = load_model(options)
    against = load(options.against) if options.against else None
    by_position = options.by_position or bool(options.save)
    scores = model.score(*options.data, against=against, by_position=by_position, **settings)
    if options.save:
        name = os.path.basename(os.path.abspath(options.model))
        draw(position_curves({name: scores["loss_by_position"]})).save(options.save)
    if options.json:
        print(json.dumps(scores))
        return
    losses = scores.pop("loss_by_position", [])
    for name, value in scores.items():
        print(f"{name:14} {value}" if isinstance(value, str) else f"{name:14} {value:.4f}")
    for place, value in loss_table(losses):
        print(f"loss at {place:6} {value:.4f}")


def look(options: argparse.Namespace) -> None:
    if options.word is not None:
        compare_word(options)
        return
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


def compare_word(options: argparse.Namespace) -> None:
    """Print how alike a word's vectors in two texts are, layer by layer."""
    if len(options.input) != 2 or options.save is not None:
        raise UserError(f"--word {options.word}: give two INPUTs that have this word, and no --save")
    from regard.runs.load import load
    from regard.viewer.context import compare_word

    for name, cosine in compare_word(load(options.model), options.word, *check_inputs(options.input)).items():
        print(f"{cosine:.4f}\t{name}")


def open_page(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or save it as one file."""
    if options.patch is not None:
        raise UserError("--patch is for images; leave it out and click a patch on the page, or save .svg")
    if len(options.input) != 1:
        raise UserError(f"the page shows one INPUT, not {len(options.input)}; --save .svg draws several")
    from regard.runs.load import load
    from regard.viewer.html import VIEWS
    from regard.viewer.session import page

    if options.view is not None and options.view not in VIEWS:
        raise UserError(f"--view {options.view}: the page has no such view; it has {', '.join(VIEWS)}")
    settings = {name: getattr(options, name) for name in ("view", "part", "layer", "head")}
    state = {name: str(value) for name, value in settings.items() if value is not None}
    (text,) = check_inputs(options.input)
    session = page(load(options.model), text, options.answer)
    others = [load(folder) for folder in options.against]
    for folder, other in zip(options.against, others, strict=True):
        if other.task.reads != (reads := session.model.task.reads):
            raise UserError(
                f"--against {folder}: it reads {other.task.reads}, not {reads} like {options.model}"
            )
    if options.save is not None:
        session.save(options.save, state)
        print(options.save)
        return
    from regard.serve.server import serve_page

    serve_page(session.model, session, state, compared_models=others)
    raise KeyboardInterrupt  # stopped by Ctrl-C, which the server has handled: exit with its status


def serve(options: argparse.Namespace) -> None:
    from regard.runs.load import load
    from regard.serve.registry import ServerLimits, model_names
    from regard.serve.security import SecurityConfig
    from regard.serve.server import serve_models

    asked = {name: getattr(options, name) for name in ("places", "queue", "timeout")}
    asked["tokens"] = options.max_tokens
    limits = ServerLimits(**{name: value for name, value in asked.items() if value is not None})
    key = os.environ.get("REGARD_API_KEY") if options.api_key is None else options.api_key
    if options.host not in ("127.0.0.1", "localhost", "::1") and key is None:
        print("whoever reaches this address may use it; --api-key asks them for a key", file=sys.stderr)
    security = SecurityConfig(
        host=options.host,
        names=frozenset(name.lower() for name in options.name),
        key=key,
    )
    models = {
        name: load(folder, dtype=options.dtype)
        for name, folder in zip(model_names(options.model), options.model, strict=True)
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

    folders = options.nanogpt, options.gptfast
    bench(options.size, options.seconds, options.rows, *folders, options.save)


def prepare(options: argparse.Namespace) -> None:
    from regard.data import DataConfig, prepare
    from regard.runs import recipe
    from regard.tasks import Write

    sections = recipe.change(recipe.read("write"), recipe.assignments(options.set))
    config = recipe.fill("data", sections["data"], DataConfig)
    prepare(options.data, options.out, config, Write.specials, options.valid)
    print(options.out)


COMMANDS = {
    command.__name__: command for command in (train, ask, score, look, serve, export, demo, bench, prepare)
}
