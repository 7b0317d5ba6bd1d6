"""`regard ask` and `regard score`: use a model, and evaluate it."""

import argparse
import contextlib
import gc
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.parser import ANSWER_OPTIONS
from regard.errors import UserError, os_reason

TERMINAL_HELP = "/reset starts a new conversation, /seed N sets the seed, /help says this, Ctrl-D ends"
MOST_COLUMNS = 12  # classes in a confusion matrix that is printed

if TYPE_CHECKING:
    from regard.decode.grammar import Grammar
    from regard.runs.model import Model
    from regard.tasks import Answer


@contextlib.contextmanager
def collecting_no_garbage() -> Iterator[None]:
    """Import without garbage collection, which with torch would take a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_at(options: argparse.Namespace) -> "Model":
    """Return the model as it was at the step of --at."""
    with collecting_no_garbage():
        from regard.runs.load import at_step, load
    model = load(options.model, dtype=options.dtype, adapter=options.adapter)
    return model if options.at is None else at_step(model, options.at)


def load_model(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the model, or an ensemble, and the options for its answers."""
    model = load_at(options)
    if options.ensemble:
        from regard.runs.ensemble import ensemble
        from regard.runs.load import load

        model = ensemble([model, *(load(other, dtype=options.dtype) for other in options.ensemble)])
    if options.words:
        model = model.words()
    values = {name: getattr(options, name, None) for name in (*ANSWER_OPTIONS, "within")}
    if values["within"] is not None and "within" not in model.task.extra_options:
        raise UserError("--in needs a model that embeds texts; train one with the recipe embed")
    return model, {name: value for name, value in values.items() if value is not None}


def read_schema(model: "Model", file: str) -> "Grammar":
    """Compile a file with a JSON schema for the answers of a model."""
    from regard.decode.grammar import MAX_GRAMMAR, compile_grammar
    from regard.describe.settings import output_vocab
    from regard.files.untrusted import read_text

    if not model.task.generates:
        raise UserError("--schema needs a model that writes")
    try:
        text = read_text(Path(file), MAX_GRAMMAR)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({os_reason(error)}); give a JSON schema") from None
    vocab = output_vocab(model.model.config)
    try:
        return compile_grammar("json", text, model.task.output_tokenizer, vocab)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def ask(options: argparse.Namespace) -> None:
    model, settings = load_model(options)
    if options.schema is not None:
        settings |= {"grammar": read_schema(model, options.schema), "num_beams": settings.get("num_beams", 1)}
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
    lines: Iterator[tuple[str, Any]] = read_stdin()
    if inputs:
        lines = ((f"INPUT {n}", text) for n, text in enumerate(inputs, 1))
    answered, status = False, 0
    while batch := list(itertools.islice(lines, model.task.ask_batch_size)):
        answers = iter(answer_each(model, [text for _, text in batch if isinstance(text, str)], settings))
        results = [next(answers) if isinstance(text, str) else text for _, text in batch]
        if not answered and isinstance(results[0], UserError) and len({str(r) for r in results}) == 1:
            if (following := next(lines, None)) is None:
                where = "" if inputs else f"{batch[0][0]}: "
                raise UserError(f"{where}{results[0]}")  # all fail in the same way: the request is wrong
            lines = itertools.chain([following], lines)
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
                print(format_answer(text, answer, unread, options.json, show_scores, model.task.empty_answer))
        sys.stdout.flush()
    if status:
        sys.exit(status)


def format_answer(
    text: str, answer: "Answer", unread: int, as_json: bool, show_score: bool, empty: str = ""
) -> str:
    if not as_json:
        scored = show_score and answer.score is not None
        shown = answer.text or empty
        return f"{answer.score:.4f}\t{shown}" if scored else shown
    row = {"input": text, "output": answer.text if answer.value is None else answer.value}
    if answer.score is not None:
        row["score"] = answer.score
    if unread:
        row["unread_tokens"] = unread
    return json.dumps(row, ensure_ascii=False)


def answer_each(
    model: "Model", texts: Sequence[str], settings: dict[str, Any]
) -> "list[list[Answer] | UserError]":
    """Answer all texts, and report an error for each that can't be answered."""
    try:
        return list(model.answers(texts, **settings))
    except UserError as error:
        if len(texts) == 1:
            return [error]
    halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    return [result for half in halves for result in answer_each(model, half, settings)]


def note_unread(model: "Model", where: str, text: Any, advice: str = "give less text") -> int:
    """Warn that a text is not read as a whole, and return the number of tokens left out."""
    if not model.task.may_be_long(text):
        return 0
    read, count = model.task.count_tokens(text)
    if read < count:
        report(f"{where}: {read:,} of its {count:,} tokens are read, as many as fit; {advice}")
    return count - read


def report(message: str) -> None:
    """Print an error on standard error, and continue."""
    sys.stdout.flush()
    print(f"regard: {' '.join(message.split())}", file=sys.stderr)


def check_inputs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of the command line. Raise UserError if one is not UTF-8."""
    for n, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"INPUT {n} is not UTF-8; convert it, or set the terminal to UTF-8")
        yield text


def read_stdin() -> Iterator[tuple[str, str | UserError]]:
    """Yield the lines of standard input as UTF-8 in any locale, and the location of each."""
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


def converse(model: "Model", settings: dict[str, Any]) -> None:
    """Answer line by line on a terminal, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for input()
    turns: list[str] = []  # the conversation so far, for models that chat
    print(f"{model!r}\n{TERMINAL_HELP}", file=sys.stderr)
    for text in read_terminal():
        word, _, rest = text.strip().partition(" ")
        if word == "/reset":
            turns.clear()
        elif word == "/seed" and rest.strip().isdecimal():
            settings["seed"] = int(rest)
        elif word.startswith("/") and word[1:].isalpha():
            print(TERMINAL_HELP, file=sys.stderr)
        else:
            try:
                if model.task.converses:
                    question = model.task.conversation([*turns, text]) if text.strip() else ""
                    note_unread(model, "the conversation", question, "/reset starts a new one")
                    turns += [text, print_stream(model.stream(question, **settings))]
                elif model.task.shows_scores:
                    empty = model.task.empty_answer
                    for answer in model.answers(text, **settings)[0]:
                        unread = note_unread(model, "INPUT", text)
                        print(format_answer(text, answer, unread, False, True, empty))
                else:
                    note_unread(model, "INPUT", text)
                    print_stream(model.stream(text, **settings))
            except UserError as error:  # the next line may work
                report(str(error))
            except KeyboardInterrupt:  # of this answer, not of the conversation
                print()


def read_terminal() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def score(options: argparse.Namespace) -> None:
    from regard.data.reading import describe_guesses, read_together
    from regard.draw.heat import confusion_matrix
    from regard.draw.picture import check_suffix, draw
    from regard.draw.plots import position_curves
    from regard.draw.scene import Figure
    from regard.runs.load import load
    from regard.runs.score import loss_table

    if options.save:
        check_suffix(options.save)  # before a long computation
    model, settings = load_model(options)
    against = load(options.against, dtype=options.dtype) if options.against else None
    classes = model.task.counted_classes
    by_position = options.by_position or bool(options.save and not classes)
    with read_together() as reading:
        scores = model.score(
            *options.data, against=against, by_position=by_position, details=True, **settings
        )
    for note in describe_guesses(reading):
        print(note, file=sys.stderr)
    if options.save:
        name = os.path.basename(os.path.abspath(options.model))
        if classes and not options.by_position:
            figure: Figure = confusion_matrix(name, list(scores["classes"]), scores["confusion"])
        else:
            figure = position_curves({name: scores["loss_by_position"]})
        draw(figure).save(options.save)
    if options.json:
        print(json.dumps(finite_numbers(scores)))
        return
    losses, by_class = scores.pop("loss_by_position", []), scores.pop("classes", {})
    confusion = scores.pop("confusion", [])
    width = max([14, *map(len, scores)])
    for name, value in scores.items():
        print(f"{name:{width}} {format_score(value)}")
    if by_class:
        print_classes(by_class, confusion)
    for place, value in loss_table(losses):
        print(f"loss at {place:6} {value:.4f}")


def print_classes(classes: dict[str, dict[str, float]], confusion: list[list[int]]) -> None:
    """Print the scores of each class and the confusion matrix."""
    from regard.cli.listing import print_table

    columns = ("precision", "recall", "f1", "rows")
    rows = [[name, *(format_score(row[column]) for column in columns)] for name, row in classes.items()]
    print()
    print_table([["class", *columns], *rows], right=range(1, 5))
    mistakes = [
        (count, true, predicted)
        for true, row in zip(classes, confusion, strict=True)
        for predicted, count in zip(classes, row, strict=True)
    ]
    print()
    if len(classes) <= MOST_COLUMNS:
        counts = [[name, *map(str, row)] for name, row in zip(classes, confusion, strict=True)]
        print_table([["true \\ predicted", *classes], *counts], right=range(1, len(classes) + 1))
        return
    wrong = sorted(((n, a, b) for n, a, b in mistakes if a != b and n), reverse=True)[:MOST_COLUMNS]
    print_table([["rows", "true", "predicted"], *([str(n), a, b] for n, a, b in wrong)], right={0})


def format_score(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def finite_numbers(scores: dict[str, Any]) -> dict[str, Any]:
    """The scores with None for numbers that JSON does not have, such as the correlation of equal values."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in scores.items()}
