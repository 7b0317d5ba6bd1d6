"""`regard look`: a page, a picture, or a file of a model at work."""

import argparse

from regard.cli.asking import check_inputs, load_at
from regard.errors import UserError


def look(options: argparse.Namespace) -> None:
    if options.word is not None:
        compare_word(options)
        return
    if options.against and options.save is not None:
        raise UserError("--against works on the page in the browser only; leave --save out")
    ending = (options.save or ".html").lower()
    if options.tour is not None and not ending.endswith(".html"):
        raise UserError(f"--tour {options.tour} is for the page; leave --save out, or save .html")
    saves_page = options.save is not None and ending.endswith(".html")
    if options.with_model and not saves_page:
        raise UserError("--with-model puts the model into a page; give --save model.html, too")
    if not options.input and not saves_page:
        raise UserError("give an INPUT to look at: a text or an image; --save model.html needs none")
    if ending.endswith(".html"):
        open_page(options)
    elif ending.endswith(".safetensors"):
        save_trace(options)
    elif ending.endswith((".svg", ".png")):
        from regard.viewer import look

        settings = {name: getattr(options, name) for name in ("layer", "head", "part", "patch", "answer")}
        texts = list(check_inputs(options.input))
        look(load_at(options), texts, options.view, **settings).save(options.save)
        print(options.save)
    elif ending.endswith(".gif"):
        save_film(options)
    else:
        raise UserError(f"--save {options.save}: unknown format; use .svg, .png, .gif, .html or .safetensors")


def save_film(options: argparse.Namespace) -> None:
    """Save a view of the model at the steps of its training, as an animation."""
    if options.at is not None:
        raise UserError(f"--at {options.at}: a film shows all steps that the run has kept; leave it out")
    if len(options.input) != 1:
        raise UserError(f"a film is of one INPUT, not {len(options.input)}; save one film for each")
    from regard.viewer.film import save_gif
    from regard.viewer.views import Choice

    settings = {name: getattr(options, name) for name in ("layer", "head", "part", "patch", "answer")}
    (text,) = check_inputs(options.input)
    save_gif(options.save, load_at(options), text, options.view, Choice(**settings))
    print(options.save)


def compare_word(options: argparse.Namespace) -> None:
    """Print how similar a word's vectors in two texts are, layer by layer."""
    if len(options.input) != 2 or options.save is not None:
        raise UserError(f"--word {options.word}: give two INPUTs that have this word, and no --save")
    from regard.viewer.context import compare_word

    for name, cosine in compare_word(load_at(options), options.word, *check_inputs(options.input)).items():
        print(f"{cosine:.4f}\t{name}")


def open_page(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or save it as one file."""
    if options.patch is not None:
        raise UserError("--patch is for images; leave it out and click a patch on the page, or save .svg")
    if len(options.input) > 1:
        raise UserError(f"the page shows one INPUT, not {len(options.input)}; --save .svg draws several")
    from regard.runs.load import load
    from regard.viewer.html import VIEWS
    from regard.viewer.session import page
    from regard.viewer.tours import read_tour

    if options.view is not None and options.view not in VIEWS:
        raise UserError(f"--view {options.view}: the page has no such view; it has {', '.join(VIEWS)}")
    settings = {name: getattr(options, name) for name in ("view", "part", "layer", "head")}
    state = {name: str(value) for name, value in settings.items() if value is not None}
    text = next(check_inputs(options.input), None)
    if text is None or options.with_model:
        from regard.viewer.model_file import save_model

        save_model(load_at(options), options.save, text, options.answer, **state)
        print(options.save)
        return
    session = page(load_at(options), text, options.answer)
    if options.tour is not None:
        session.tour = read_tour(options.tour)
        state |= {"tour": "own", "stop": "1"}
    compared_models = [load(folder, dtype=options.dtype) for folder in options.against]
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


def save_trace(options: argparse.Namespace) -> None:
    """Save all tensors of a forward pass in one file."""
    for name in ("view", "head", "part", "patch"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is for images, and a trace has everything; leave it out, or save .svg")
    if len(options.input) != 1:
        raise UserError(f"a trace is of one INPUT, not {len(options.input)}; save one trace for each")
    from regard.tracing import trace

    (text,) = check_inputs(options.input)
    inputs = text if options.answer is None else (text, options.answer)
    trace(load_at(options), inputs, None if options.layer is None else [options.layer]).save(options.save)
    print(options.save)
