"""The film of a training: as a GIF, as a strip, and in every view of the page, in a real browser."""

import json

import pytest
import torch
from PIL import Image

import regard
from helpers.browsing import WORDS, axe_violations, close, trained
from helpers.commands import call, stdout_of
from helpers.errors import user_error
from helpers.serving import Server, serve_app, serve_session
from regard.files.locks import lock_folder
from regard.files.tensors import write_tensors
from regard.runs.film import frame_path
from regard.runs.layout import FILM, LOG
from regard.serve import live
from regard.serve.live import Training, live_app
from regard.viewer.film import film_scenes
from regard.viewer.session import Session
from regard.viewer.views import Choice

STEPS = [0, 2, 5, 9]
LOSSES = {step: 3.0 - step / 5 for step in STEPS[1:]}  # of `trained`
SELECTED = "['layer', 'head'].map(name => new URLSearchParams(location.hash.slice(1)).get(name))"
RECORD = """() => {
  window.seen = [];
  const output = document.getElementById("film-step");
  new MutationObserver(() => window.seen.push(output.textContent.split(" · ")[0]))
    .observe(output, { childList: true });
}"""


def add_frame(folder, model, step):
    weights = {name: t * (step + 3) / 8 for name, t in model.model.state_dict().items()}
    write_tensors(frame_path(folder, step), weights)


@pytest.fixture
def folder(tmp_path):
    folder = trained(tmp_path / "run")
    (folder / FILM).mkdir()
    model = regard.load(folder, "cpu")
    for step in STEPS:
        add_frame(folder, model, step)
    return folder


# Pictures


def test_a_gif_has_all_frames(folder, tmp_path, capsys):
    path = tmp_path / "film.gif"
    assert stdout_of(capsys, "look", folder, WORDS, "--save", path, "--head", 1) == f"{path}\n"
    with Image.open(path) as film:
        assert film.n_frames == len(STEPS)
        frames = []
        for n in range(film.n_frames):
            film.seek(n)
            frames.append(film.convert("RGB").tobytes())
    assert len(set(frames)) == len(STEPS)


def test_frames_say_their_step_and_loss_and_are_the_model_of_that_step(folder):
    model = regard.load(folder, "cpu")
    scenes = film_scenes(model, WORDS, "heads", Choice(layer=1, head=2))
    for step, scene in zip(STEPS, scenes, strict=True):
        words = [shape.words for shape in scene.shapes if hasattr(shape, "words")]
        assert words[0] == (f"step {step}, loss {LOSSES[step]:.4f}" if step else "step 0")
        alone = regard.look(regard.at_step(model, step), WORDS, "heads", layer=1, head=2).scene
        assert len(scene.shapes) == len(alone.shapes) + 1
        colours = [[getattr(shape, "fill", None) for shape in one.shapes] for one in (scene, alone)]
        assert colours[0][1:] == colours[1]


def test_a_strip(folder, tmp_path, capsys):
    stdout_of(capsys, "look", folder, WORDS, "--view", "film", "--save", tmp_path / "film.svg")
    text = (tmp_path / "film.svg").read_text("utf-8")
    assert all(f"step {step}, loss {loss:.4f}" in text for step, loss in LOSSES.items())


def test_checkpoints_are_a_film_too_and_without_any_it_is_refused(folder, tmp_path, capsys):
    for step in STEPS:
        frame_path(folder, step).unlink()
    model = regard.load(folder, "cpu")
    titles = [scene.title for scene in film_scenes(model, WORDS, None, Choice())]
    assert [title.split(",")[0] for title in titles] == ["step 3", "step 7"]
    model.folder = tmp_path
    user_error(lambda: film_scenes(model, WORDS, None, Choice()), tmp_path, "--look")
    for words, why in ((["--at", "3"], "--at 3"), (["other"], "one INPUT"), (["--view", "nose"], "nose")):
        assert call("look", folder, WORDS, *words, "--save", tmp_path / "a.gif") == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1


# In a browser


@pytest.fixture
def watched(tab, folder, monkeypatch):
    """The page of a training that has reached step 9, and what was asked for on it; it may take all time."""
    monkeypatch.setattr(live, "SHARE", 1e9)
    monkeypatch.setattr(live, "LOOK_SHARE", 1e9)
    asked = []
    training = Training(asked.append)
    with lock_folder(folder, "--out"), serve_app(live_app(folder, WORDS, training)) as port:
        it = tab(Server(port).url, f"#follow=1&control={training.token}")
        yield it, training, asked


def weight(it):
    """A number of the table beside the head that is shown."""
    it.page.wait_for_selector("main:not([aria-busy]) section.attention")
    return it.table()[4][2]


def test_the_film_plays_in_every_view(watched, folder):
    it, _, _ = watched
    model = regard.load(folder, "cpu")
    it.wait("#film-step", "step 9")
    assert float(it.page.get_attribute("#film-step", "data-loss")) == LOSSES[9]
    it.page.focus("#film-at")
    it.press("Home")
    it.wait("#film-step", "step 0")
    it.press("ArrowRight")
    it.wait("#film-step", "step 2")
    it.page.wait_for_url("**checkpoint=2**")
    assert "follow" not in it.page.url  # the reader has chosen a frame
    it.visit("attention")
    it.page.wait_for_selector("section.attention")
    layer, head = map(int, it.page.evaluate(SELECTED))
    expected = regard.trace(regard.at_step(model, 2), WORDS)[f"blocks.{layer}.attn.weights"][head]
    assert close(weight(it), float(expected[4, 2]))
    it.visit("next")
    it.page.wait_for_selector("section.next .bars")
    best = regard.trace(regard.at_step(model, 2), WORDS)["logits"][-1].argmax()
    assert it.text(".bars button").strip() == model.tokenizer.tokens([int(best)])[0].strip()
    it.visit("space")
    it.page.wait_for_selector("section.space")
    it.page.evaluate(RECORD)
    it.page.click("#film-play")
    it.wait("#film-step", "step 9")
    assert list(dict.fromkeys(it.page.evaluate("window.seen"))) == ["step 2", "step 5", "step 9"]
    assert it.page.evaluate("document.body.dataset.view") == "space"
    it.page.wait_for_selector("#film-follow[aria-pressed=true]")  # it is trained: the film goes on


def test_the_newest_frame_is_followed_and_figures_are_those_of_the_log(watched, folder):
    it, _, _ = watched
    it.visit("training")
    it.page.wait_for_selector("section.training .answers")
    with (folder / LOG).open("a") as log:
        for row in ({"step": 11, "loss": 0.4321}, {"step": 11, "notice": "the learning rate is halved"}):
            log.write(json.dumps(row) + "\n")
    add_frame(folder, regard.load(folder, "cpu"), 12)
    it.wait("#film-step", "step 12")
    assert float(it.page.get_attribute("#film-step", "data-loss")) == 0.4321
    it.wait(".notices li", "step 11: the learning rate is halved")
    it.wait(".scale", "last 0.4321")
    assert [float(loss) for loss, _ in it.table()] == pytest.approx(
        [3 - n / 5 for n in range(1, 11)] + [0.4321]
    )
    at = regard.at_step(regard.load(folder, "cpu"), 5)
    it.wait(".answers tr:has(th:text-is('5')) td", at.ask(WORDS).strip()[:10])


def test_the_training_is_paused_and_its_rate_changed(watched):
    it, training, asked = watched
    assert training.token not in it.page.url
    it.page.reload()
    it.wait("#film-step", "step 9")
    with it.page.expect_response("**/api/training"):
        it.page.click("#training-pause")
    with it.page.expect_response("**/api/training"):
        it.page.select_option("#training-rate", "0.5")
    it.page.wait_for_function("document.activeElement.id !== 'training-rate'")
    assert asked == [{"pause": True}, {"rate": 0.5}]
    training.state = {"paused": True, "rate": 0.5, "ended": False}
    it.wait("#training-pause", "Go on training")
    it.wait("#training-status", "training is paused")
    assert it.page.input_value("#training-rate") == "0.5"
    with it.page.expect_response("**/api/training"):
        it.page.click("#training-pause")
    training.state = {"paused": False, "rate": 0.5, "ended": True}
    it.wait("#training-status", "training has ended")
    assert not it.page.is_visible("#training-pause")
    assert asked[-1] == {"pause": False}


def test_the_address_without_the_token_only_shows_the_training(tab, folder):
    asked = []
    with lock_folder(folder, "--out"), serve_app(live_app(folder, WORDS, Training(asked.append))) as port:
        it = tab(Server(port).url, "#follow=1")
        it.page.click("#training-pause")
        it.wait("#training-status", "address that the training printed")
        assert not asked
        assert "403" in it.wrong.pop()  # the browser's line about it


def test_a_run_that_is_over_has_its_film_and_no_controls(tab, folder):
    with serve_session(Session(regard.load(folder, "cpu"), WORDS)) as server:
        it = tab(server.url)
        it.wait("#film-step", "final model")
        assert not it.page.is_visible("#training-pause")
        assert not it.page.is_visible("#film-follow")
        it.page.evaluate(RECORD)
        it.page.click("#film-play")
        it.wait("#film-play", "Pause film")
        it.page.wait_for_selector("#film-play:text-is('Play')")
        captions = list(dict.fromkeys(it.page.evaluate("window.seen")))
        assert captions == ["final model", *(f"step {step}" for step in STEPS)]
        assert it.page.is_visible("#film")
        assert axe_violations(it.turn("#view=training").page) == ""


def test_a_frame_gives_the_same_trace_as_a_model_with_its_weights(folder):
    model = regard.load(folder, "cpu")
    early = regard.trace(regard.at_step(model, 9), WORDS)
    model.model.load_state_dict({name: t * 12 / 8 for name, t in model.model.state_dict().items()})
    other = regard.trace(model, WORDS)
    assert early.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(early[name], t) for name, t in other.tensors.items())
