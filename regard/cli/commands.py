"""What each command does."""

import argparse
import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from regard.cli.parser import ANSWER_OPTIONS, READING
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.tasks import Answer


@contextlib.contextmanager
def reading_settings(options: argparse.Namespace) -> Iterator[None]:
    """Apply --set of a command that reads files without a recipe."""
    if options.command not in READING or not options.set:
        yield
        return
    from regard.data import files
    from regard.runs import recipe

    sections = recipe.change({"data": {}}, recipe.assignments(options.set))
    config = recipe.fill("data", sections["data"], files.ReadConfig)
    with files.read_together(config.max_bytes, config.version):
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
    model.request([], settings)  # raises an error about the options before one about a line
    if not options.input and sys.stdin.isatty():
        if settings.get("num_return_sequences", 1) > 1:
            raise UserError("--num-return-sequences is not for conversations; give INPUT or pipe lines in")
        if "within" in settings:
            raise UserError("--in is not for conversations; give INPUT or pipe lines in")
        converse(model, settings)
        return
    inputs = model.task.join_arguments(list(check_inputs(options.input)))
    several = settings.get("num_return_sequences", 1) > 1
    show_scores = "within" in settings or model.task.shows_scores
    if len(inputs) == 1 and not (several or show_scores or options.json):
        note_unread(model, "INPUT", inputs[0])
        print_stream(model.stream(inputs[0], **settings))
        return
    lines = zip((f"INPUT {n}" for n in itertools.count(1)), inputs, strict=False) if inputs else read_stdin()
    answered, status = False, 0
    while batch := list(itertools.islice(lines, model.task.ask_batch_size)):
        answers = iter(answer_each(model, [text for _, text in batch if isinstance(text, str)], settings))
        results = [next(answers) if isinstance(text, str) else text for _, text in batch]
        if not answered and isinstance(results[0], UserError) and len({str(r) for r in results}) == 1:
            where = "" if inputs else f"{batch[0][0]}: "
            raise UserError(f"{where}{results[0]}")  # all are wrong in the same way: so is what was asked
        answered = True
        for (where, text), result in zip(batch, results, strict=True):
            if isinstance(result, UserError):
                status = 1
                report(f"{where}: {result}")
                row = {"input": text if isinstance(text, str) else None, "error": str(result)}
                print(json.dumps(row, ensure_ascii=False) if options.json else "")
                continue
            unread = note_unread(model, where, text)
            for answer in result:
                print(format_answer(text, answer, unread, options.json, show_scores))
        sys.stdout.flush()
    if status:
        sys.exit(status)


def format_answer(text: str, answer: "Answer", unread: int, as_json: bool, show_score: bool) -> str:
    if not as_json:
        scored = show_score and answer.score is not None
        return f"{answer.score:.4f}\t{answer.text}" if scored else answer.text
    row = {"input": text, "output": answer.text if answer.value is None else answer.value}
    if answer.score is not None:
        row["score"] = answer.score
    if unread:
        row["unread_tokens"] = unread
    return json.dumps(row, ensure_ascii=False)


def answer_each(
    model: Any, texts: Sequence[str], settings: dict[str, Any]
) -> "list[list[Answer] | UserError]":
    """Answer all texts, or say what is wrong with each that can't be answered."""
    try:
        return list(model.answers(texts, **settings))
    except UserError as error:
        if len(texts) == 1:
            return [error]
    halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    return [result for half in halves for result in answer_each(model, half, settings)]


def note_unread(model: Any, where: str, text: str) -> int:
    """Say that not all of a text is read, and return how many of its tokens are not."""
    task = model.task
    if task.reads != "text" or len(text.encode()) <= task.text_limit // 4:  # which must fit
        return 0
    read, count = task.count_tokens(text)
    if read < count:
        report(f"{where}: {read:,} of its {count:,} tokens are read, as many as fit; give less text")
    return count - read


def report(message: str) -> None:
    """Say on standard error what is wrong, and go on."""
    sys.stdout.flush()
    print(f"regard: {' '.join(message.split())}", file=sys.stderr)


def check_inputs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of the command line. Raise UserError if one is not UTF-8."""
    for n, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"INPUT {n} is not UTF-8; convert it, or set the terminal to UTF-8")
        yield text


def read_stdin() -> Iterator[tuple[str, str | UserError]]:
    """Yield the lines of standard input as UTF-8, whatever the locale, and where each is."""
    for n, line in enumerate(sys.stdin.buffer, 1):
        text: str | UserError
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as e:
            text = UserError(f"byte 0x{line[e.start]:02x} is not UTF-8; convert it")
        yield f"standard input:{n}", text


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
        else:
            try:
                if model.task.converses:
                    question = model.task.conversation([*turns, text]) if text.strip() else ""
                    turns += [text, print_stream(model.stream(question, **settings))]
                else:
                    note_unread(model, "INPUT", text)
                    print_stream(model.stream(text, **settings))
            except UserError as error:  # the next line may be better
                report(str(error))


def read_terminal() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def score(options: argparse.Namespace) -> None:
    from regard.data.files import read_together
    from regard.draw.picture import check_suffix, draw
    from regard.draw.plots import position_curves
    from regard.runs.load import load
    from regard.runs.score import loss_table

    if options.save:
        check_suffix(options.save)  # before a long computation
    model, settings = load_model(options)
    against = load(options.against) if options.against else None
    by_position = options.by_position or bool(options.save)
    with read_together() as reading:
        scores = model.score(*options.data, against=against, by_position=by_position, **settings)
    for note in reading.notes:
        print(note, file=sys.stderr)
    if options.save:
        name = os.path.basename(os.path.abspath(options.model))
        draw(position_curves({name: scores["loss_by_position"]})).save(options.save)
    if options.json:
        print(json.dumps(finite_numbers(scores)))
        return
    losses = scores.pop("loss_by_position", [])
    for name, value in scores.items():
        print(f"{name:14} {value}" if isinstance(value, str) else f"{name:14} {value:.4f}")
    for place, value in loss_table(losses):
        print(f"loss at {place:6} {value:.4f}")


def finite_numbers(scores: dict[str, Any]) -> dict[str, Any]:
    """The scores with None for numbers that JSON does not have, such as the correlation of equal values."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in scores.items()}


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
    compared_models = [load(folder) for folder in options.against]
    for folder, other in zip(options.against, compared_models, strict=True):
        if other.task.reads != (reads := session.model.task.reads):
            raise UserError(
                f"--against {folder}: it reads {other.task.reads}, not {reads} like {options.model}"
            )
    if options.save is not None:
        session.save(options.save, state)
        print(options.save)
        return
    from regard.serve.server import serve_page

    serve_page(session.model, session, state, compared_models=compared_models)
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
