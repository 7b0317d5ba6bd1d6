"""`regard completion SHELL`: a script that completes commands, options, choices, recipes and runs with the
Tab key.

The script holds all of them, so that completing starts no Python. Only the settings of a recipe, after
--set, come from `regard train RECIPE --help`, and are cached: they need torch, and a script that is printed
at the start of every shell should not wait for it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from regard.cli.parser import READING, build_parser
from regard.cli.shells import BASH, FISH, ZSH
from regard.runs import recipe

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Command:
    """What can follow a command's name; everything else is a file."""

    name: str
    about: str
    options: dict[str, str]  # with their meanings
    valued: list[str]  # options that take a value
    choices: dict[str, list[str]]  # of options that have choices
    runs: list[str]  # options whose value is a run
    words: list[str]  # the first argument is one of them
    models: str  # which arguments are runs: "first", "every" or ""


def list_commands() -> list[Command]:
    parser = build_parser()
    abouts = {a.dest: a.help or "" for g in parser._subparsers._group_actions for a in g._choices_actions}  # type: ignore[union-attr]
    words = {"train": list(recipe.names()), "completion": list(SHELLS)}
    commands = []
    for name, sub in parser.commands.items():
        actions = {text: a for a in sub._actions for text in a.option_strings if text.startswith("--")}
        first = next((a for a in sub._actions if not a.option_strings), None)
        takes_models = name == "runs" or (first is not None and first.metavar == "MODEL")
        choices = {text: [str(c) for c in a.choices] for text, a in actions.items() if a.choices}
        commands.append(
            Command(
                name,
                abouts.get(name, ""),
                options={text: (a.help or "").replace("%%", "%") for text, a in actions.items()},
                valued=[text for text, a in actions.items() if a.nargs != 0],
                choices=choices | ({"--set": ["data.max_bytes="]} if name in READING else {}),
                runs=[text for text, a in actions.items() if a.metavar in ("MODEL", "RUN")],
                words=words.get(name, []),
                models="" if not takes_models else "every" if name in ("runs", "serve") else "first",
            )
        )
    return commands


def completion(options: argparse.Namespace) -> None:
    """Print the script of a shell."""
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](list_commands()), end="")


def insert(template: str, **lines: Sequence[str]) -> str:
    """Replace each line @NAME@ by the lines of that name, indented as it is."""
    result: list[str] = []
    for line in template.splitlines():
        name = line.strip()
        inserted_lines = lines.get(name[1:-1].lower()) if name[:1] == name[-1:] == "@" else None
        result += [line] if inserted_lines is None else [line.replace(name, one) for one in inserted_lines]
    return "\n".join(result) + "\n"


def quote(text: str) -> str:
    """A word in quotes, the same in all shells."""
    return "'" + text.replace("\\", "/").replace("'", "'\"'\"'") + "'"


def facts(c: Command) -> str:
    """The case of a command, in bash and zsh."""
    values = {"options": c.options, "valued": c.valued, "runs": c.runs, "begin": c.words}
    assignments = [f"{name}={quote(' '.join(words))}" for name, words in values.items() if words]
    return " ".join([f"{c.name})", *assignments, *([f"models={c.models}"] if c.models else []), ";;"])


def choice_cases(commands: Sequence[Command]) -> list[str]:
    return [
        f"'{c.name} {option}') offered={quote(' '.join(choices))} ;;"
        for c in commands
        for option, choices in c.choices.items()
    ]


def bash(commands: Sequence[Command]) -> str:
    """For bash: eval "$(regard completion bash)" in ~/.bashrc."""
    names = " ".join([*(c.name for c in commands), "--help", "--version"])
    cases = {"commands": [facts(c) for c in commands], "choices": choice_cases(commands)}
    return insert(BASH, **cases, names=[f"offered={quote(names)}"])


def zsh(commands: Sequence[Command]) -> str:
    """For zsh: eval "$(regard completion zsh)" in ~/.zshrc, or as a file _regard in a folder of $fpath."""

    def described(words: dict[str, str]) -> str:
        return " ".join(quote(f"{word}:{about}") for word, about in words.items())

    return insert(
        ZSH,
        commands=[facts(c) for c in commands],
        choices=choice_cases(commands),
        names=[f"offers=({described({c.name: c.about for c in commands})})"],
        options=[f"{c.name}) offers=({described(c.options)}) ;;" for c in commands],
    )


def fish(commands: Sequence[Command]) -> str:
    """For fish: regard completion fish > ~/.config/fish/completions/regard.fish."""
    lines = []
    for c in commands:
        lines.append(f"complete -c regard -n __regard_no_command -f -a {c.name} -d {quote(c.about)}")
        here = f"complete -c regard -n '__regard_command {c.name}'"
        if c.words:
            words = " ".join([*c.words, *(["(__regard_recipes)"] if c.name == "train" else [])])
            lines.append(f"complete -c regard -n '__regard_named {c.name}' -f -a {quote(words)}")
        if c.models:
            place = f"__regard_{'first' if c.models == 'first' else 'command'} {c.name}"
            lines.append(f"complete -c regard -n '{place}' -a '(__regard_runs)'")
        for option, about in c.options.items():
            value = " -r" if option in c.valued else ""
            if option in c.choices:
                value = f" -x -a {quote(' '.join(c.choices[option]))}"
            elif option in c.runs:
                value = " -r -a '(__regard_runs)'"
            elif option == "--set":
                value = " -x -a '(__regard_settings)'"
            lines.append(f"{here} -l {option[2:]}{value} -d {quote(about)}")
    valued = [f"case {c.name}; set valued {' '.join(c.valued)}" for c in commands if c.valued]
    return insert(FISH, valued=valued, complete=lines)
