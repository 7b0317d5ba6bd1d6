"""A model at a step of its run: in Python, and in every view of the page."""

import shutil

import pytest
import torch

import regard
from helpers.browsing import WORDS, close, trained
from helpers.errors import user_error
from helpers.looking import CONTEXT, DEEP, reader, shaken
from helpers.serving import serve_session
from regard.models import GPT, GPTConfig
from regard.runs import lora
from regard.runs.checkpoints import save
from regard.runs.layout import CHECKPOINTS, WEIGHTS
from regard.runs.load import steps_of
from regard.viewer.session import Session


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("replay") / "run")


def test_the_weights_are_those_of_the_checkpoint(folder):
    model = regard.load(folder, "cpu")
    assert (steps_of(model), model.step) == ([3, 7], None)
    before = {name: t.clone() for name, t in model.model.state_dict().items()}
    early = regard.at_step(model, 3)
    assert early.step == 3
    for name, t in early.model.state_dict().items():
        assert torch.equal(t, before[name] * 3 / 5)
        assert torch.equal(model.model.state_dict()[name], before[name])
    assert not early.model.training
    user_error(lambda: regard.at_step(model, 4), "step 4: there are 3, 7 in", "train.keep")
    user_error(lambda: regard.at_step(reader("write", "gpt"), 4), "there are no checkpoints")


def test_lora_weights_are_merged(folder, tmp_path):
    """A LoRA checkpoint: the plain model has W + α/r B A."""
    shutil.copytree(folder, tmp_path / "run")
    model = regard.load(tmp_path / "run", "cpu")
    adapted = GPT(GPTConfig(vocab=model.tokenizer.vocab, **DEEP))
    lora.add(adapted, 2, 5.0)
    shaken(adapted)
    save(tmp_path / "run" / CHECKPOINTS, 9, adapted.state_dict(), {}, {"step": 9})
    ids = torch.arange(CONTEXT)[None] % model.tokenizer.vocab
    with torch.no_grad():
        torch.testing.assert_close(regard.at_step(model, 9).model(ids), adapted(ids))


def test_a_damaged_checkpoint_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    model = regard.load(tmp_path / "run", "cpu")
    path = tmp_path / "run" / CHECKPOINTS / "step-7" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-4] + b"\0\1\2\3")
    user_error(lambda: regard.at_step(model, 7), "step-7", "damaged")


# In a browser


@pytest.fixture
def opened(tab, folder):
    model = regard.load(folder, "cpu")
    with serve_session(Session(model, WORDS)) as server:
        yield tab(server.url), model, server


def test_the_slider_replays_every_view(opened):
    tab, model, _ = opened
    tab.open("#view=training&layer=1&head=0")
    assert tab.page.get_attribute("#mark", "visibility") == "hidden"
    tab.page.focus("#replay")
    tab.press("ArrowLeft")
    tab.wait(".replay output", "step 7")
    tab.page.wait_for_url("**checkpoint=7**")
    tab.page.wait_for_selector("#checkpoint option[value='7']:checked", state="attached")
    assert tab.page.get_attribute("#mark", "visibility") == "visible"
    tab.visit("attention")
    tab.page.wait_for_selector("section.attention")
    w = regard.trace(regard.at_step(model, 7), WORDS)["blocks.1.attn.weights"][0]
    assert close(tab.table()[4][2], float(w[4, 2]))
    tab.page.click("#checkpoint-previous")  # the one before, from the bar
    tab.page.wait_for_url("**checkpoint=3**")
    tab.page.wait_for_selector(".twin table", state="detached")
    w = regard.trace(regard.at_step(model, 3), WORDS)["blocks.1.attn.weights"][0]
    assert close(tab.table()[4][2], float(w[4, 2]))
    tab.visit("take")
    tab.wait("#python", "regard.at_step(regard.load(")
    tab.visit("talk")
    tab.page.fill("#asked", WORDS)
    tab.page.click("#say")
    tab.wait(".said", regard.at_step(model, 3).ask(WORDS).strip()[:20])
    tab.page.select_option("#checkpoint", "")
    tab.page.wait_for_url(lambda url: "checkpoint" not in url)
    tab.visit("attention")
    tab.page.wait_for_selector("section.attention")
    w = regard.trace(model, WORDS)["blocks.1.attn.weights"][0]
    assert close(tab.table()[4][2], float(w[4, 2]))


def test_only_steps_that_are_there_can_be_named(opened):
    tab, _, server = opened
    for wrong in (4, -1, "../../etc", 3.5, [3], True):
        status, _, said = server.ask("/api/trace", {"checkpoint": wrong})
        assert status == 400, wrong
        assert b"checkpoint: give" in said or b"there are 3, 7" in said
    tab.open("#checkpoint=4", wait="main .wrong")
    assert "there are 3, 7" in tab.text("main .wrong")
    tab.wrong.clear()  # the browser's own word on a status of 400


def test_nothing_to_replay_is_reported(tab, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns(CHECKPOINTS))
    model = regard.load(tmp_path / "run", "cpu")
    with serve_session(Session(model, WORDS)) as server:
        it = tab(server.url, "#view=training")
        assert "train.keep" in it.text("section.training")
        assert it.page.query_selector("#checkpoint, #replay") is None
        it.page.wait_for_selector("#scene .stage", state="attached")  # which the server still answers
