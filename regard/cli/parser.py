"""The commands and options of the command line."""

import argparse
import difflib
import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from regard import __version__
from regard.errors import UserError, suggest
from regard.runs import recipe

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
    "prompt_lookup_num_tokens": INTEGER | {"help": "guess N tokens from the text so far: faster"},
    "num_beams": INTEGER | {"help": "beam search with N beams"},
    "length_penalty": NUMBER | {"help": "for beam search; above 0 prefers longer answers"},
    "num_return_sequences": INTEGER | {"help": "return N answers to each input"},
    "stop": {"action": "append", "metavar": "TEXT", "help": "stop before this text (repeatable)"},
    "prefix": {"metavar": "TEXT", "help": "how the translation or reply begins"},
    "shortlist": {
        "action": "store_true",
        "default": None,
        "help": "of a translator on a CPU: write only words that may translate the source's (faster)",
    },
    "distance": {"choices": ["cosine", "euclidean"], "help": "distance between word vectors"},
    "seed": INTEGER | {"help": "random seed; the same seed gives the same answers"},
}
COLUMN_OPTIONS = {  # of `train` and `score`: the columns of tables
    "text": "the text to learn, to classify or to compare",
    "other": "the second text of a pair with a label or a score",
    "label": "the class",
    "score": "the score",
    "source": "the text to translate or to reply to; inside an object such as translation, its key: en",
    "target": "the translation or the reply",
    "negative": "the text of a triplet that means something else",
    "question": "the question",
    "context": "the text that contains the answer",
    "answer": "the answer",
    "start": "where the answer begins, in characters",
    "impossible": "true if the text does not answer the question",
    "words": "the words of a sentence",
    "tags": "the tags of the words",
    "group": "in tables with a word in each row, the sentence that it belongs to",
    "image": "the path of an image",
    "caption": "its captions",
    "audio": "the path of a recording",
    "voice": "the speaker",
}
LONGER = {"words"}  # these options are also called --words-column
TRACKERS = ("tensorboard", "wandb", "trackio")
DTYPES = ["auto", "float32", "bfloat16", "int8", "int4"]  # of models that are used
PRECISION = "the precision: of weights on a CPU (default: auto, as stored), of generating on a GPU (bfloat16)"
PRECISIONS = {"auto": "auto", "float32": "fp32", "bfloat16": "bf16"}  # --dtype of train: train.precision
READING = ("ask", "score", "look", "serve", "export")  # they read data or word vectors, without a recipe


class Parser(argparse.ArgumentParser):
    """Takes options before, between and after the arguments of a command. Raises UserError, instead of
    printing the usage."""

    commands: "dict[str, Parser]"  # of the parser of all commands

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        words = sys.argv[1:] if args is None else list(args)
        if not words:
            self.print_help()
            sys.exit(0)
        if words[0] not in self.commands:
            if not words[0].startswith("-"):
                raise UserError(
                    f"no command {words[0]}; {suggest(words[0], self.commands)} (see regard --help)"
                )
            return super().parse_args(words, namespace)
        command, *rest = words
        if command == "train" and {"-h", "--help"} & set(rest) and (name := find_recipe(rest)):
            return argparse.Namespace(command="settings", recipe=name)
        if "--" in rest:  # argparse drops it if no argument stands before it
            at = rest.index("--")
            plain = list(itertools.takewhile(lambda word: not word.startswith("-"), rest[at + 1 :]))
            rest = [*rest[:at], *plain, "--", *rest[at + 1 + len(plain) :]]
        # parse_args would match all arguments with the first group of words, and refuse those after options.
        options = self.commands[command].parse_intermixed_args(rest, namespace)
        options.command = command
        return options

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2]
        if unknown.startswith("-") and (hint := self.suggest(unknown)):
            message = f"no option {hint}"
        raise UserError(f"{message} (see {self.prog} --help)")

    def suggest(self, unknown: str) -> str:
        """Name the first of unknown options, and the option that may have been meant."""
        option = unknown.split(" ")[0].partition("=")[0]
        close = difflib.get_close_matches(option, self._option_string_actions, 1)
        if close:
            return f"{option}; did you mean {close[0]}?"
        return f"{unknown}; write the file as ./{unknown}" if os.path.lexists(unknown) else ""


def find_recipe(words: Sequence[str]) -> str | None:
    """The first word that is a recipe's name, or a .toml file."""
    return next((word for word in words if word in recipe.names() or word.endswith(".toml")), None)


def build_parser() -> Parser:
    """The parser of all commands; `command` is the name of the one that was given."""
    top = Parser(prog="regard", description="Every transformer in one small, fast, see-through codebase.")
    top.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = top.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    top.commands = commands.choices

    def add(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")

    add_train_options(add("train", "train a model with a recipe"))
    add_ask_options(add("ask", "use a model: continue a text, translate, answer, classify an image"))
    add_score_options(add("score", "evaluate a model on held-out data"))
    add_look_options(add("look", "look inside a model at work: a page in the browser, or an image"))
    add_serve_options(add("serve", "serve models over HTTP: the page, an OpenAI-compatible API, metrics"))
    add_runs_options(add("runs", "list the runs in a folder, or compare two"))

    p = add("info", "describe a model: kind, size, tokenizer, scores, data")
    p.add_argument("model", metavar="MODEL")
    p.add_argument("--json", action="store_true", help="print one JSON object")

    add_export_options(add("export", "write a model as a folder for other programs"))

    p = add("demo", "train a chatbot in about a minute, ask it, and show its attention")
    p.add_argument("--out", type=name_of, metavar="RUN", help="the run folder (default: runs/demo)")
    p.add_argument("--look", action="store_true", help="watch it learn on a page in the browser")

    add_bench_options(
        add("bench", "measure the speed of training, writing and serving here, next to other libraries")
    )

    p = add("completion", "print a script that completes commands and options in a shell")
    p.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell that runs the script")

    add_prepare_options(add("prepare", "tokenize a large corpus once, in parallel, into shards on disk"))
    for name in READING:
        about = "data.max_bytes=N: let a compressed file expand to N bytes"
        add_set_option(commands.choices[name], about)
    return top


def add_runs_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "dir", nargs="*", metavar="DIR", help="folders with runs (default: runs), or runs to compare"
    )
    p.add_argument("--json", action="store_true", help="print a JSON object per run, or one of a comparison")
    sorts = ["changed", "name", "best", "size", "time"]
    p.add_argument(
        "--sort", choices=sorts, default="changed", help="the order (default: changed, newest first)"
    )
    p.add_argument(
        "--save", type=name_of, metavar="FILE", help=".svg or .png: the curves of the runs that are compared"
    )


def add_export_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL")
    about = "a new folder, or a file: .gguf; for word2vec .txt or .bin"
    p.add_argument("out", type=name_of, metavar="DIR", help=about)
    add_adapter_option(p)
    formats = ["hf", "onnx", "ctranslate2", "gguf", "word2vec", "peft"]
    p.add_argument("--to", choices=formats, default="hf", help="the format (default: hf, Hugging Face)")
    about = "bfloat16, int8 or int4: a smaller GGUF, or folder for Regard (default: auto, float32 or F16)"
    add_dtype_option(p, about)
    licence = "the licence for the model's card, such as apache-2.0"
    p.add_argument("--license", metavar="NAME", help=licence)


def add_bench_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("rows", nargs="*", metavar="ROW", help="what to measure, such as writing (default: all)")
    sizes = ["pico", "tiny", "mini", "gpt2"]
    p.add_argument("--size", choices=sizes, default="tiny", help="the model size (default: tiny)")
    p.add_argument("--seconds", **NUMBER, default=3.0, help="seconds per measurement (default: 3)")
    p.add_argument("--nanogpt", metavar="DIR", help="nanoGPT's folder, to train its model too")
    p.add_argument("--gptfast", metavar="DIR", help="gpt-fast's folder, to write with it too")
    p.add_argument("--save", type=name_of, metavar="FILE", help=".svg: draw the rates as bars")


def add_prepare_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--out", type=name_of, required=True, metavar="DIR", help="a new folder")
    p.add_argument("--valid", **REPEATED, metavar="FILE", help="validation data")
    about = "prepare only part K of N, as on one of N machines; the last one to finish joins the parts"
    p.add_argument("--part", type=part_of, metavar="K/N", help=about)
    add_column_options(p, ["text"])
    add_set_option(p)


def name_of(text: str) -> str:
    """Return a name. An empty one, as from an unset variable, would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give one")
    return text


def part_of(text: str) -> tuple[int, int]:
    """Return the numbers of K/N."""
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 3/64")
    return int(match[1]), int(match[2])


def add_set_option(
    p: argparse.ArgumentParser, about: str = "change a setting, as in model.dim=256 or lr=1e-3"
) -> None:
    p.add_argument("--set", **REPEATED, metavar="KEY=VALUE", help=about)


def add_encoding_option(p: argparse.ArgumentParser) -> None:
    about = "the encoding of the files, such as cp1252 for Excel on Windows (default: utf-8)"
    p.add_argument("--encoding", metavar="NAME", help=about)


def add_column_options(
    p: argparse.ArgumentParser, fields: Iterable[str] = COLUMN_OPTIONS, taken: Sequence[str] = ()
) -> None:
    """Add an option for each column; only --NAME-column, where --NAME has another meaning."""
    p.add_argument("--sheet", metavar="NAME", help="the sheet of Excel files (default: the first)")
    add_encoding_option(p)
    group = p.add_argument_group("columns of tables, by name or number")
    for name in fields:
        names = [name] if name not in taken else []
        names += [f"{name}-column"] if name in LONGER else []
        options = [f"--{name}" for name in names]
        group.add_argument(*options, dest=f"column_{name}", metavar="COLUMN", help=COLUMN_OPTIONS[name])


def chosen_columns(options: argparse.Namespace) -> dict[str, str]:
    """The columns that the options of a command choose."""
    columns = {name: getattr(options, f"column_{name}", None) for name in COLUMN_OPTIONS}
    return {name: column for name, column in columns.items() if column is not None}


def add_train_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="name of a recipe, or a .toml file; with --help, its settings",
    )
    sources = "files, folders, - for standard input, or hf:NAME (default: a built-in data set)"
    p.add_argument("data", nargs="*", metavar="DATA", help=sources)
    p.add_argument("--list", action="store_true", help="list the recipes")
    p.add_argument("--valid", **REPEATED, metavar="FILE", help="validation data")
    p.add_argument("--out", type=name_of, metavar="RUN", help="the run folder (default: runs/RECIPE)")
    p.add_argument("--from", dest="base", metavar="MODEL", help="a model to start from (fine-tuning)")
    p.add_argument("--adapter", action="store_true", help="train and keep only low-rank updates: LoRA")
    about = "a model to learn from, or several (distillation)"
    p.add_argument("--teacher", **REPEATED, metavar="MODEL", help=about)
    p.add_argument("--steps", **INTEGER, help="train for N steps")
    p.add_argument("--epochs", **NUMBER, help="train for X passes over the data")
    p.add_argument("--minutes", type=float, metavar="M", help="train for at most M minutes (default: 5)")
    look = "open a page in the browser that shows the model while it learns"
    p.add_argument("--look", action="store_true", help=look)
    p.add_argument("--dry-run", action="store_true", help="print the plan, and train nothing")
    machine = (
        "print the plan for another machine: h200, a100, cpu2, ...; for several: 256xh200, or 64 of this one"
    )
    p.add_argument("--for", dest="machine", metavar="MACHINE", help=machine)
    p.add_argument("--lr", **NUMBER, help="the learning rate: train.lr")
    p.add_argument("--batch", **INTEGER, help="sequences per step: train.batch")
    p.add_argument("--seed", **INTEGER, help="the random seed: train.seed")
    p.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], help="where to train: train.device")
    p.add_argument("--dtype", choices=list(PRECISIONS), help="the precision: train.precision")
    p.add_argument(
        "--log", dest="tracker", choices=TRACKERS, help="a tracker that gets the log, besides log.jsonl"
    )
    add_set_option(p)
    p.add_argument("--resume", action="store_true", help="resume the run in --out, or start it")
    add_column_options(p)


def add_ask_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", help="a run folder")
    p.add_argument("input", nargs="*", metavar="INPUT", help="texts or images (default: standard input)")
    p.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_at_option(p)
    p.add_argument("--in", dest="within", metavar="FILE", help="search this file for the most similar lines")
    p.add_argument("--schema", metavar="FILE", help="a JSON schema that every answer matches")
    add_answer_options(p)


def add_adapter_option(p: argparse.ArgumentParser) -> None:
    p.add_argument("--adapter", metavar="DIR", help="an adapter in PEFT's layout, added to a language model")


def add_at_option(p: argparse.ArgumentParser) -> None:
    add_adapter_option(p)
    p.add_argument("--at", **INTEGER, help="the model as it was at step N of its run, from a checkpoint")


def add_dtype_option(p: argparse.ArgumentParser, about: str = PRECISION) -> None:
    p.add_argument("--dtype", choices=DTYPES, default="auto", help=about)


def add_score_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL")
    p.add_argument("data", nargs="+", metavar="DATA")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_at_option(p)
    p.add_argument("--against", metavar="MODEL", help="another model: is the difference significant?")
    by_position = "for a model that writes, the loss by the number of tokens before"
    p.add_argument("--by-position", action="store_true", help=by_position)
    p.add_argument(
        "--save",
        type=name_of,
        metavar="FILE",
        help=".svg or .png: the confusion matrix, or the loss by position as a curve",
    )
    add_answer_options(p)
    add_column_options(p, taken=("words",))  # --words uses word vectors


def add_answer_options(p: argparse.ArgumentParser) -> None:
    ensemble = "ask an ensemble with this model (repeatable)"
    p.add_argument("--with", **REPEATED, dest="ensemble", metavar="MODEL", help=ensemble)
    for name, settings in ANSWER_OPTIONS.items():
        p.add_argument("--" + name.replace("_", "-"), **settings)
    add_dtype_option(p)
    p.add_argument("--words", action="store_true", help="use the model's word vectors instead of the model")


def add_look_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL")
    p.add_argument("input", nargs="*", metavar="INPUT", help="a text or an image; several with --save .svg")
    formats = ".svg, .png, .gif (the film of its training), .html (the page), .safetensors (all tensors)"
    p.add_argument("--save", type=name_of, metavar="FILE", help=formats)
    p.add_argument(
        "--with-model", action="store_true", help="in the .html, too: it runs offline; as without INPUT"
    )
    add_at_option(p)
    add_dtype_option(p)
    p.add_argument("--view", metavar="NAME", help="the view, or film; a wrong name lists them")
    p.add_argument("--layer", **INTEGER, help="the layer, from 0 (default: the last)")
    p.add_argument("--head", **INTEGER, help="the head, from 0 (default: the mean of all)")
    p.add_argument("--part", metavar="NAME", help="of an encoder-decoder: cross, encoder or decoder")
    p.add_argument("--patch", **INTEGER, help="the patch of an image, row by row from 0")
    p.add_argument("--answer", metavar="TEXT", help="look at this answer instead of the model's own")
    p.add_argument("--against", **REPEATED, metavar="MODEL", help="a model to compare with (repeatable)")
    p.add_argument("--tour", metavar="FILE", help="a guided tour that you wrote, as TOML (docs/looking.md)")
    p.add_argument("--word", metavar="WORD", help="print how alike this word's vectors in two INPUTs are")


def add_serve_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", nargs="+", metavar="MODEL", help="folders; each model is named after its folder")
    add_adapter_option(p)
    p.add_argument("--host", default="127.0.0.1", metavar="HOST", help="the address (default: 127.0.0.1)")
    p.add_argument("--port", **INTEGER, help="the port (default: 7447, or the next free one)")
    p.add_argument("--name", **REPEATED, metavar="NAME", help="another accepted host name (repeatable)")
    p.add_argument("--api-key", metavar="KEY", help="require this key from clients (or set REGARD_API_KEY)")
    add_dtype_option(p)
    p.add_argument(
        "--places",
        **INTEGER,
        help="answers generated at once, per model (default: 32; on a GPU, what its memory holds, up to 512)",
    )
    p.add_argument("--queue", **INTEGER, help="requests that may wait (default: 128)")
    p.add_argument("--workers", **INTEGER, default=1, help="processes, each with its own places (default: 1)")
    p.add_argument("--max-tokens", **INTEGER, help="limit for one answer (default: 4096)")
    p.add_argument("--timeout", type=float, metavar="S", help="seconds for one answer (default: 120)")
    p.add_argument("--log", choices=["json", "none"], default="json", help="a JSON line per request, or none")
