"""The command line. Answers go to standard output, everything else to standard error."""

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from . import __version__
from .errors import Mistake


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Exit status: 0 fine, 2 the user's mistake, 1 anything else, 130 and 143 for signals."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: leave(143))  # so that half-written things are tidied away
    try:
        options.do(options)
        sys.stdout.flush()
    except Mistake as e:
        fail(str(e))
    except KeyboardInterrupt:
        leave(130)
    except BrokenPipeError:  # whoever read our answers has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        leave(0)
    except OSError as e:  # a folder that may not be written, a name that is too long
        if e.filename is None:
            raise
        fail(f"{e.filename}: {e.strerror or e}")
    sys.exit(0)


def fail(message: str) -> NoReturn:
    sys.stderr.write("regard: " + " ".join(message.split()) + "\n")  # at once: other processes may speak too
    sys.exit(2)


def leave(status: int) -> NoReturn:
    sys.stderr.flush()
    sys.exit(status)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="regard", description="Every transformer in one small, fast, see-through codebase.")
    top.add_argument("--version", action="version", version=f"regard {__version__}")
    verbs = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def verb(name: str, do: Any, about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        made.set_defaults(do=do)
        return made

    p = verb("train", train, "train a model by a recipe")
    p.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe's name, or a .toml file")
    p.add_argument(
        "data", nargs="*", metavar="DATA", help="files, folders, - or hf:NAME; else a built-in set"
    )
    p.add_argument("--list", action="store_true", help="show the recipes")
    p.add_argument("--valid", action="append", default=[], metavar="FILE", help="data to measure on")
    p.add_argument("--out", metavar="RUN", help="the run's folder (runs/RECIPE)")
    p.add_argument("--from", dest="base", metavar="MODEL", help="a model to start from")
    p.add_argument("--steps", type=int, metavar="N", help="how many steps to train")
    p.add_argument("--minutes", type=float, metavar="M", help="how long to train")
    setting(p)
    p.add_argument("--resume", action="store_true", help="go on with the run in --out, or begin it")

    p = verb("ask", ask, "use a model: write on from a text, translate, answer, see")
    p.add_argument("model", metavar="MODEL", help="a run's folder")
    p.add_argument(
        "input", nargs="*", metavar="INPUT", help="texts or pictures; else a line of standard input each"
    )
    p.add_argument("--json", action="store_true", help="print one object a line")
    p.add_argument("--in", dest="within", metavar="FILE", help="the lines of a file that are nearest")
    asking(p)

    p = verb("score", score, "measure a model on held-out data")
    p.add_argument("model", metavar="MODEL")
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--json", action="store_true", help="print one object")
    p.add_argument("--against", metavar="MODEL", help="another model: is the difference more than chance?")
    asking(p)

    p = verb("look", look, "look inside a model at work: a page in the browser, or a picture")
    p.add_argument("model", metavar="MODEL")
    p.add_argument("input", nargs="+", metavar="INPUT", help="a text or a picture; several for one drawing")
    p.add_argument("--save", metavar="FILE", help=".svg, .png, .html (the page), .safetensors (all numbers)")
    p.add_argument("--view", metavar="NAME", help="another view than the usual; a wrong name lists them")
    p.add_argument("--layer", type=int, metavar="N", help="counted from 0 (the last)")
    p.add_argument("--head", type=int, metavar="N", help="counted from 0 (the mean of all)")
    p.add_argument("--part", metavar="NAME", help="of an encoder-decoder: cross, encoder or decoder")
    p.add_argument("--patch", type=int, metavar="N", help="of a picture, counted row by row from 0")
    p.add_argument("--answer", metavar="TEXT", help="look at this answer, not at the model's own")
    p.add_argument("--against", action="append", default=[], metavar="MODEL", help="to compare it with")

    p = verb("serve", serve, "put models behind an HTTP address: the page, an OpenAI-compatible API, metrics")
    p.add_argument("model", nargs="+", metavar="MODEL", help="folders; each model is named like its own")
    p.add_argument("--host", default="127.0.0.1", metavar="HOST", help="the address to listen at (127.0.0.1)")
    p.add_argument("--port", type=int, metavar="N", help="(7447, or another that is free)")
    p.add_argument("--name", action="append", default=[], metavar="NAME", help="a host that it answers to")
    p.add_argument("--api-key", metavar="KEY", help="that clients must give; or in REGARD_API_KEY")
    p.add_argument("--places", type=int, metavar="N", help="answers that a model writes at once (32)")
    p.add_argument("--queue", type=int, metavar="N", help="answers that wait for a place (128)")
    p.add_argument("--max-tokens", type=int, metavar="N", help="of one answer (4096)")
    p.add_argument("--timeout", type=float, metavar="S", help="seconds for a whole answer (120)")
    p.add_argument("--log", choices=["json", "none"], default="json", help="a line for each request, or none")

    p = verb("export", export, "write a model as a folder that other programs read")
    p.add_argument("model", metavar="MODEL")
    p.add_argument("out", metavar="DIR", help="a new folder")
    layouts = ["hf", "onnx", "ctranslate2"]
    p.add_argument("--to", choices=layouts, default="hf", help="the layout (hf: Hugging Face's)")

    p = verb("demo", demo, "train a chatbot in about a minute, ask it, and see what it looked at")
    p.add_argument("--out", metavar="RUN", help="the run's folder (runs/demo)")

    p = verb("bench", bench, "measure this machine: how fast it learns and writes, next to transformers")
    p.add_argument("--size", choices=["pico", "tiny", "mini", "gpt2"], default="tiny", help="(tiny)")
    p.add_argument("--seconds", type=float, default=3.0, metavar="S", help="for each figure (3)")

    p = verb("prepare", prepare, "turn a large corpus into token shards once, in parallel")
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--out", required=True, metavar="DIR")
    p.add_argument("--valid", action="append", default=[], metavar="FILE", help="data to measure on")
    setting(p)
    return top


def setting(p: argparse.ArgumentParser) -> None:
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="like model.dim=256")


def asking(p: argparse.ArgumentParser) -> None:
    """How answers are found."""
    whole: dict[str, Any] = {"type": int, "metavar": "N"}
    number: dict[str, Any] = {"type": float, "metavar": "X"}
    p.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        metavar="MODEL",
        help="ask both as one (repeatable)",
    )
    p.add_argument("--max-new-tokens", **whole, help="how much to write")
    p.add_argument("--temperature", **number, help="0 always takes the likeliest token")
    p.add_argument("--top-k", **whole, help="only the K likeliest tokens")
    p.add_argument("--top-p", **number, help="only the likeliest tokens that make up P")
    p.add_argument("--min-p", **number, help="only tokens at least P times as likely as the likeliest")
    p.add_argument("--repetition-penalty", **number, help="above 1: what was said becomes less likely")
    p.add_argument("--no-repeat-ngram-size", **whole, help="never the same N tokens twice")
    p.add_argument("--num-beams", **whole, help="the most likely answer by beam search, N wide")
    p.add_argument("--length-penalty", **number, help="of beam search: above 0 likes long answers")
    p.add_argument("--num-return-sequences", **whole, help="several answers to each input")
    p.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (repeatable)")
    p.add_argument("--prefix", metavar="TEXT", help="how a translation or a reply begins")
    p.add_argument("--words", action="store_true", help="ask for neighbours by the model's word vectors")
    p.add_argument("--distance", choices=["cosine", "euclidean"], help="of word vectors: what near means")
    p.add_argument("--seed", **whole, help="the same seed, the same answers")


def train(options: argparse.Namespace) -> None:
    from . import recipe

    if options.list:
        for name, about in recipe.names().items():
            print(f"{name:10} {about}")
        return
    if options.recipe is None:
        raise Mistake("train what? give a RECIPE; `regard train --list` shows them")
    if options.resume and not options.out:
        raise Mistake("--resume goes on with the run in --out; say which")
    recipe.read(options.recipe)  # a wrong name is told before torch is loaded
    changes = recipe.assignments(options.set)
    from .train import train

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


OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "num_return_sequences",
    "num_beams",
    "length_penalty",
    "stop",
    "prefix",
    "seed",
    "within",
    "distance",
)


def opened(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The model, or several as one, and how it is to be asked."""
    from .run import ensemble, load

    model = load(options.model)
    if options.others:
        model = ensemble([model, *map(load, options.others)])
    if options.words:
        model = model.words()
    asked = {name: getattr(options, name, None) for name in OPTIONS}
    if asked["within"] is not None and "within" not in model.task.extras:
        raise Mistake("--in compares texts by their vectors, and this model makes none; train one with embed")
    return model, {name: value for name, value in asked.items() if value is not None}


def ask(options: argparse.Namespace) -> None:
    model, chosen = opened(options)
    if not options.input and sys.stdin.isatty():
        if chosen.get("num_return_sequences", 1) > 1:
            raise Mistake("--num-return-sequences is for INPUT or lines from a pipe; a conversation has one")
        if "within" in chosen:
            raise Mistake("--in is for INPUT or lines from a pipe; give what is to be looked for")
        converse(model, chosen)
        return
    lines = given(options.input) if options.input else piped()
    weighed = "within" in chosen or model.task.weighs
    one = chosen.get("num_return_sequences", 1) == 1 and not weighed
    if one and not options.json and len(options.input) == 1:
        show(model.stream(next(lines), **chosen))
        return
    while texts := list(itertools.islice(lines, model.task.at_once)):
        for text, answers in zip(texts, model.answers(texts, **chosen), strict=True):
            for answer in answers:
                row = {"input": text, "output": answer.text}
                if answer.score is not None:
                    row["score"] = answer.score
                shown = f"{answer.score:.4f}\t{answer.text}" if weighed else answer.text
                print(json.dumps(row, ensure_ascii=False) if options.json else shown)
        sys.stdout.flush()


def given(texts: Iterable[str]) -> Iterator[str]:
    for n, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise Mistake(f"INPUT {n} is not UTF-8; convert it, or set the terminal to UTF-8")
        yield text


def piped() -> Iterator[str]:
    """The lines of standard input, whatever the locale."""
    for n, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as e:
            raise Mistake(
                f"standard input:{n}: byte 0x{line[e.start]:02x} is not UTF-8; convert it"
            ) from None


def show(pieces: Iterable[str]) -> str:
    whole = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        whole += piece
    print()
    return whole


def converse(model: Any, chosen: dict[str, Any]) -> None:
    """Line by line on a terminal, until its end (Ctrl-D)."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for input()
    turns: list[str] = []  # of a conversation that the model remembers
    for text in typed():
        word, _, rest = text.strip().partition(" ")
        if word == "/reset":
            turns.clear()
        elif word == "/seed" and rest.strip().isdecimal():
            chosen["seed"] = int(rest)
        elif word.startswith("/") and word[1:].isalpha():
            print(
                "/reset forgets the conversation, /seed N draws other answers, Ctrl-D ends", file=sys.stderr
            )
        elif model.task.talks:
            asked = model.task.conversation([*turns, text]) if text.strip() else ""
            turns += [text, show(model.stream(asked, **chosen))]
        else:
            show(model.stream(text, **chosen))


def typed() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def score(options: argparse.Namespace) -> None:
    from .run import load

    model, chosen = opened(options)
    found = model.score(*options.data, against=load(options.against) if options.against else None, **chosen)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:14} {value}" if isinstance(value, str) else f"{name:14} {value:.4f}")


def look(options: argparse.Namespace) -> None:
    if options.against and options.save is not None:
        raise Mistake("--against is for the page in the browser, which computes; leave --save out")
    if (options.save or "").lower().endswith(".safetensors"):
        keep_trace(options)
        return
    if options.save is None or options.save.lower().endswith(".html"):
        open_page(options)
        return
    if not options.save.lower().endswith((".svg", ".png")):
        raise Mistake(f"--save {options.save}: it is saved as .svg, .png, .html or .safetensors; choose one")
    from .look import look
    from .run import load

    chosen = {name: getattr(options, name) for name in ("layer", "head", "part", "patch", "answer")}
    look(load(options.model), list(given(options.input)), options.view, **chosen).save(options.save)
    print(options.save)


def open_page(options: argparse.Namespace) -> None:
    """The page in the browser, until Ctrl-C; or in one file."""
    if options.patch is not None:
        raise Mistake("--patch chooses a picture; on the page, click it: leave it out, or save .svg")
    if len(options.input) != 1:
        many = f"the page opens on one INPUT, and there are {len(options.input)}"
        raise Mistake(f"{many}; --save .svg draws them all")
    from .look.page import VIEWS, Shown
    from .run import load

    if options.view is not None and options.view not in VIEWS:
        raise Mistake(f"--view {options.view}: no such view of the page; there are {', '.join(VIEWS)}")
    chosen = {name: getattr(options, name) for name in ("view", "part", "layer", "head")}
    state = {name: str(value) for name, value in chosen.items() if value is not None}
    (text,) = given(options.input)
    shown = Shown(load(options.model), text, options.answer)
    if options.save is not None:
        shown.save(options.save, state)
        print(options.save)
        return
    from .serve import serve

    serve(shown.model, shown, state, against=[load(folder) for folder in options.against])
    raise KeyboardInterrupt  # it was stopped; where a shell has signals ignored, nobody has said so yet


def serve(options: argparse.Namespace) -> None:
    from .run import load
    from .serve import open_house
    from .serve.guard import Manners
    from .serve.house import Limits, named

    asked = {name: getattr(options, name) for name in ("places", "queue", "timeout")}
    asked["tokens"] = options.max_tokens
    limits = Limits(**{name: value for name, value in asked.items() if value is not None})
    key = options.api_key or os.environ.get("REGARD_API_KEY") or None
    if options.host not in ("127.0.0.1", "localhost", "::1") and key is None:
        print("whoever reaches this address may use it; --api-key asks them for a key", file=sys.stderr)
    manners = Manners(
        host=options.host,
        names=frozenset(name.lower() for name in options.name),
        key=key,
        most=limits.places + limits.queue,
        log=options.log == "json",
    )
    models = {name: load(folder) for name, folder in zip(named(options.model), options.model, strict=True)}
    open_house(models, manners, limits, options.port)


def keep_trace(options: argparse.Namespace) -> None:
    """Every tensor of a run in one file."""
    for name in ("view", "head", "part", "patch"):
        if getattr(options, name) is not None:
            raise Mistake(f"--{name} chooses a picture; a trace has all of them: leave it out, or save .svg")
    if len(options.input) != 1:
        raise Mistake(f"a trace is of one INPUT, and there are {len(options.input)}; save each on its own")
    from .run import load
    from .trace import trace

    (text,) = given(options.input)
    inputs = text if options.answer is None else (text, options.answer)
    trace(load(options.model), inputs, None if options.layer is None else [options.layer]).save(options.save)
    print(options.save)


def export(options: argparse.Namespace) -> None:
    from .run import export, load

    if said := export(load(options.model, "cpu"), options.out, options.to):
        print(said, file=sys.stderr)
    print(options.out)


def demo(options: argparse.Namespace) -> None:
    from .demo import demo

    demo(options.out)


def bench(options: argparse.Namespace) -> None:
    from .bench import bench

    bench(options.size, options.seconds)


def prepare(options: argparse.Namespace) -> None:
    from . import recipe
    from .data import DataConfig, prepare
    from .tasks import Write

    sections = recipe.change(recipe.read("write"), recipe.assignments(options.set))
    config = recipe.fill("data", sections["data"], DataConfig)
    prepare(options.data, options.out, config, Write.specials, options.valid)
    print(options.out)
