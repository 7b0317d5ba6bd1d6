"""Reference pages, written from the code: every command, every setting, every file of a run."""

import io
import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, fields
from typing import Any
from unittest import mock

from regard.cli.parser import build_parser
from regard.models import MODELS
from regard.runs import layout, recipe
from regard.tasks import TASKS
from regard.training.config import TrainConfig
from regard.training.settings import USUAL, comments, type_name

ARGUMENTS = {
    "MODEL": "a run folder, or any model that `regard ask` takes",
    "DATA": "files, as for `regard train`",
}
ENTRY = re.compile(r"^ {2,4}(?P<name>\S+(?: \S+)*)?(?: {2,}(?P<about>\S.*))?$")


def commands_page() -> str:
    """Every command, as `regard COMMAND --help` describes it."""
    names = [name for name, _ in entries(help_text())["commands"]]
    lines = ["# Commands", "", "`regard COMMAND --help` prints the same.", ""]
    lines += [
        f"- [regard {name}](#regard-{name}): {about}" for name, about in entries(help_text())["commands"]
    ]
    for name in names:
        text = help_text(name)
        usage, about = text.split("\n\n")[:2]
        lines += ["", f"## regard {name}", "", about, "", "```", wrap(usage), "```", ""]
        for title, rows in entries(text).items():
            lines += [f"| {title.removesuffix('s')} | |", "|---|---|"]
            lines += [f"| `{cell(argument)}` | {cell(meaning)} |" for argument, meaning in rows] + [""]
    return "\n".join(lines)


def help_text(*command: str) -> str:
    """What --help prints, with one line for each argument."""
    output = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="10000"), redirect_stdout(output), suppress(SystemExit):
        build_parser().parse_args([*command, "--help"])
    return output.getvalue()


def entries(text: str) -> dict[str, list[tuple[str, str]]]:
    """The arguments of a help text and their meanings, by the title above them."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in text.split("\n\n", 1)[1].splitlines():
        if line.endswith(":") and not line.startswith(" "):
            rows = sections.setdefault(line.removesuffix(":").removeprefix("positional "), [])
        elif match := ENTRY.match(line):
            if match["name"] and not match["name"].startswith(("-h,", "COMMAND")):
                rows.append((match["name"], match["about"] or ARGUMENTS.get(match["name"], "")))
            elif not match["name"] and rows:  # a long name has its meaning on the next line
                rows[-1] = (rows[-1][0], match["about"])
    return {title: rows for title, rows in sections.items() if rows}


def wrap(usage: str) -> str:
    """The usage in lines that break between arguments."""
    parts = re.findall(r"\[.*?\]+|\S+", usage.removeprefix("usage: "))
    lines = textwrap.wrap(" ".join(part.replace(" ", "\0") for part in parts), 90, break_on_hyphens=False)
    return "\n    ".join(lines).replace("\0", " ")


def settings_page() -> str:
    """Every recipe, and every setting with its type, default and meaning."""
    lines = [
        "# Recipes and settings",
        "",
        "`--set SECTION.NAME=VALUE` changes a setting; `recipe.toml` in a run's",
    ]
    lines += ["folder has all of them. A recipe is a TOML file with the same sections.", "", "## Recipes", ""]
    lines += ["| recipe | |", "|---|---|"]
    lines += [f"| `{name}` | {cell(about)} |" for name, about in recipe.names().items()]
    lines.append("")
    for title, config in configs():
        table = ["| setting | type | default | |", "|---|---|---|---|", *rows(config)]
        lines += [f"## {title}", "", *(table if len(table) > 2 else ["No settings of its own."]), ""]
        for preset, values in getattr(config, "PRESETS", {}).items():
            chosen = ", ".join(f"{key} {value}" for key, value in values.items())
            lines.append(f"- preset `{preset}`: {chosen}")
        lines.append("")
    return "\n".join(lines)


def configs() -> Iterator[tuple[str, Any]]:
    """The sections of recipes, and the dataclasses that they fill; those of several tasks come once."""
    for kind, (_, config, _) in sorted(MODELS.items()):
        yield f"model, kind {kind}", config
    tasks_of: dict[Any, list[str]] = {}
    for name, (task, config) in sorted(TASKS.items()):
        yield f"task {name}", config
        tasks_of.setdefault(task.data_config, []).append(name)
    for config, names in tasks_of.items():
        yield f"data of {', '.join(names)}", config
    yield "train", TrainConfig


def rows(config: Any) -> Iterator[str]:
    notes = comments(config)
    for field in fields(config):
        if field.name == "name":  # of a task: the recipe's own
            continue
        default = "" if field.default is MISSING else f"`{field.default}`"
        about = notes.get(field.name) or USUAL.get(field.name, "")
        yield f"| `{field.name}` | {cell(type_name(field.type))} | {cell(default)} | {cell(about)} |"


def files_page() -> str:
    """The files of a run's folder."""
    about = {
        layout.CONFIG: "the kind of model and its sizes",
        layout.WEIGHTS: "the best model's weights",
        layout.TOKENIZER: "the vocabulary and how a text is split, for the `tokenizers` library",
        layout.TARGET_TOKENIZER: "the target's, if it has its own",
        layout.GENERATION: "how answers are generated unless `ask` says otherwise",
        layout.RECIPE: "every setting of the training, with the seed",
        layout.LOG: "a line of JSON for every logged step and every evaluation",
        layout.CURVE: "the loss in training and on held-out data",
        layout.CARD: "a description with the scores",
        layout.TENSORBOARD: "events for TensorBoard, with `--log tensorboard`",
        layout.CHECKPOINTS: "`step-N/`: what `--resume` needs, with a manifest of hashes",
        layout.FILM: "`step-N.safetensors`: the weights at some steps, to look at, if trained with `--look`",
    }
    lines = ["# Files", "", "A run is a folder. Nothing in it is a pickle.", "", "| file | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in about.items()]
    lines += ["", "[What is locked, checked and moved aside](runs.md)", ""]
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("%%", "%")
