"""The functions of the commands."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from regard.cli.asking import ask, score
from regard.cli.completion import completion
from regard.cli.listing import info, runs
from regard.cli.looking import look
from regard.cli.parser import PRECISIONS, READING, chosen_columns
from regard.errors import UserError
from regard.training.trackers import check_installed


@contextlib.contextmanager
def reading_settings(options: argparse.Namespace) -> Iterator[None]:
    """Apply --set of a command that reads files without a recipe."""
    columns = chosen_columns(options) if options.command == "score" else {}
    sheet, encoding = getattr(options, "sheet", None), getattr(options, "encoding", None)
    if options.command not in READING or not (options.set or columns or sheet or encoding):
        yield
        return
    from regard.data.reading import ReadConfig, read_together
    from regard.runs import recipe

    changes = recipe.assignments(options.set) | ({"data.encoding": encoding} if encoding else {})
    sections = recipe.change({"data": {}}, changes)
    config = recipe.fill("data", sections["data"], ReadConfig)
    columns = {**(config.columns or {}), **columns}
    with read_together(config, columns=columns, sheet=sheet or config.sheet):
        yield


def read_changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the options about reading files change."""
    columns = {f"columns.{name}": column for name, column in chosen_columns(options).items()}
    read = columns | {"sheet": options.sheet, "encoding": options.encoding}
    return {f"data.{name}": value for name, value in read.items() if value is not None}


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
    if options.tracker is not None:
        check_installed(options.tracker)
        changes["train.tracker"] = options.tracker
    for option in ("lr", "batch", "seed", "device"):
        if (value := getattr(options, option)) is not None:
            changes[f"train.{option}"] = value
    changes |= read_changes(options)
    if options.adapter:
        changes["train.adapter"] = True
    if options.dtype is not None:
        changes["train.precision"] = PRECISIONS[options.dtype]
    asked = {
        name: getattr(options, name) for name in ("valid", "base", "teacher", "steps", "epochs", "minutes")
    }
    if options.dry_run or options.machine is not None:
        from regard.training.build import plan
        from regard.training.plan.report import describe

        planned = plan(options.recipe, *options.data, **asked, set=changes, machine=options.machine)
        lines, where = [*planned.data, *describe(planned)], planned.request.machine
        if where is not None and where.processes > 1:
            from regard.training.plan.cluster import describe_cluster

            lines[-1:] = describe_cluster(planned)  # instead of the time on one process
        print("\n".join(lines))
        return
    from regard.training.build import train

    more = {"out": options.out, "resume": options.resume, "look": options.look}
    model = train(options.recipe, *options.data, **asked, set=changes, **more)
    if int(os.environ.get("RANK", 0)) == 0:
        print(model.folder, flush=True)
    if options.look:
        from regard.training.live import stay_open

        stay_open()


def settings(options: argparse.Namespace) -> None:
    """`regard train RECIPE --help`."""
    from regard.training.settings import describe_recipe

    lines = list(describe_recipe(options.recipe))
    print(f"usage: regard train {options.recipe} [DATA ...] [options]\n")
    print("`regard train --help` lists the options.\n")
    print("\n".join(lines))


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
        print("anyone who can reach this address may use it; --api-key requires a key", file=sys.stderr)
    security = SecurityConfig(
        host=options.host,
        names=frozenset(name.lower() for name in options.name),
        key=key,
    )
    folders = dict(zip(model_names(options.model), options.model, strict=True))
    adapter = options.adapter
    if adapter is not None and len(folders) > 1:
        raise UserError(f"--adapter {adapter}: for one model, not {len(folders)}; give that one")
    if options.workers != 1:
        from regard.serve.workers import WorkerSetup, serve_with_workers

        log = options.log == "json"
        setup = WorkerSetup(folders, options.dtype, security, limits, log, options.workers, adapter=adapter)
        serve_with_workers(setup, options.port)
    models = {name: load(folder, dtype=options.dtype, adapter=adapter) for name, folder in folders.items()}
    serve_models(models, security, limits, options.port, options.log == "json")


def export(options: argparse.Namespace) -> None:
    from regard.runs.export import export
    from regard.runs.load import load

    # in float32: weights of four bits would be rounded a second time
    model = load(options.model, "cpu", "float32", adapter=options.adapter)
    if summary := export(model, options.out, options.to, options.dtype, options.license):
        print(summary, file=sys.stderr)
    print(options.out)


def demo(options: argparse.Namespace) -> None:
    from regard.demo import demo

    demo(options.out, options.look)


def bench(options: argparse.Namespace) -> None:
    from regard.bench import bench

    folders = options.nanogpt, options.gptfast
    bench(options.size, options.seconds, options.rows, *folders, options.save)


def prepare(options: argparse.Namespace) -> None:
    from regard.data import DataConfig, prepare
    from regard.runs import recipe
    from regard.tasks import Write

    changes = recipe.assignments(options.set) | read_changes(options)
    sections = recipe.change(recipe.read("write"), changes)
    parts = {"tokenizer": "bpe"} if options.part else {}  # which can be learned from one part
    config = recipe.fill("data", parts | sections["data"], DataConfig)
    prepare(options.data, options.out, config, Write.specials, options.valid, part=options.part)
    print(options.out)


COMMANDS = {
    command.__name__: command
    for command in (
        train,
        settings,
        ask,
        score,
        look,
        serve,
        runs,
        info,
        export,
        demo,
        bench,
        completion,
        prepare,
    )
}
