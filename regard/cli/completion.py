"""`regard completion SHELL`: a script that completes commands, options, choices and recipes with the Tab key.

The script holds all of them, so that completing starts no Python.
"""

import argparse
import shlex
from dataclasses import dataclass

from regard.cli.parser import build_parser
from regard.runs import recipe

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Command:
    """What can follow a command's name; everything else is a file."""

    name: str
    about: str
    options: dict[str, str]  # with their meanings
    choices: dict[str, list[str]]  # of options that have some
    words: list[str]  # to begin with


def list_commands() -> list[Command]:
    parser = build_parser()
    abouts = {a.dest: a.help or "" for g in parser._subparsers._group_actions for a in g._choices_actions}  # type: ignore[union-attr]
    commands = []
    for name, sub in parser.commands.items():
        actions = [a for a in sub._actions if a.option_strings]
        options = {text: a.help or "" for a in actions for text in a.option_strings if text.startswith("--")}
        choices = {
            text: [str(c) for c in a.choices] for a in actions if a.choices for text in a.option_strings
        }
        words = {"train": list(recipe.names()), "completion": list(SHELLS)}.get(name, [])
        commands.append(Command(name, abouts.get(name, ""), options, choices, words))
    return commands


def completion(options: argparse.Namespace) -> None:
    """Print the script of a shell."""
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](list_commands()), end="")


def bash(commands: list[Command]) -> str:
    """For bash: eval "$(regard completion bash)" in ~/.bashrc."""
    return f"""# regard completion bash: put this line into ~/.bashrc: eval "$(regard completion bash)"
_regard() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{" ".join(c.name for c in commands)} --help --version"
    else
        case "${{COMP_WORDS[1]}} $previous" in
{choice_cases(commands)}        *)
            case "${{COMP_WORDS[1]}}" in
{word_cases(commands)}            esac
            [[ "$current" == -* ]] || [ "$COMP_CWORD" -eq 2 ] || words=""
            ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [ -n "$COMPREPLY" ] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _regard regard
"""


def choice_cases(commands: list[Command]) -> str:
    return "".join(
        f'        "{c.name} {option}") words="{" ".join(choices)}" ;;\n'
        for c in commands
        for option, choices in c.choices.items()
    )


def word_cases(commands: list[Command]) -> str:
    return "".join(
        f'                {c.name}) words="{" ".join([*c.words, *c.options])}" ;;\n' for c in commands
    )


def zsh(commands: list[Command]) -> str:
    """For zsh, by its emulation of bash's completion."""
    head = "# regard completion zsh: put this line into ~/.zshrc, after compinit: "
    head += 'eval "$(regard completion zsh)"\nautoload -U +X bashcompinit && bashcompinit\n'
    return head + bash(commands).split("\n", 1)[1].replace("complete -o filenames -F", "complete -F")


def fish(commands: list[Command]) -> str:
    """For fish: regard completion fish > ~/.config/fish/completions/regard.fish."""
    lines = ["# regard completion fish > ~/.config/fish/completions/regard.fish"]
    for c in commands:
        lines.append(f"complete -c regard -n __fish_use_subcommand -f -a {c.name} -d {shlex.quote(c.about)}")
        here = f"complete -c regard -n '__fish_seen_subcommand_from {c.name}'"
        if c.words:
            lines.append(f"{here} -a {shlex.quote(' '.join(c.words))}")
        for option, about in c.options.items():
            values = f" -x -a {shlex.quote(' '.join(c.choices[option]))}" if option in c.choices else ""
            lines.append(f"{here} -l {option[2:]}{values} -d {shlex.quote(about.replace('%%', '%'))}")
    return "\n".join(lines) + "\n"
