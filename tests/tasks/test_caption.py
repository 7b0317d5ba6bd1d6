"""Captioning: batches, the loss, answers, scores and attention."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.errors import user_error
from helpers.runs import unmeasured, write_captions
from regard.data.synthetic import KINDS, SIZE, draw_shapes
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.describe.watch import watch
from regard.models import Captioner, CaptionerConfig
from regard.runs.recipe import fill
from regard.tasks.caption import Caption, CaptionConfig, CaptionData
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.training.build import train

GREEDY = Sampling(max_new_tokens=11, temperature=0)
TINY = {"model.dim": 16, "model.heads": 2, "data.vocab": 320, "train.batch": 7, "train.device": "cpu"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_captions(tmp_path_factory.mktemp("captions") / "caption.tsv")


def read(table: str, **settings: Any) -> tuple[Caption, Any]:
    config = CaptionConfig(name="caption", **settings)
    corpus = Caption.read(DataRequest([table], (), CaptionData(vocab=320, holdout=0.2), config, 23))
    settings_read = CaptionConfig(**vars(config) | corpus.task_settings)
    return Caption(settings_read, corpus.tokenizer, 23), corpus


def model_of(task: Caption, **more: Any) -> Captioner:
    torch.manual_seed(1)
    sizes = {"vocab": task.tokenizer.vocab, "size": 12, "context": 23, "dim": 16, "heads": 2, "dropout": 0.0}
    return Captioner(CaptionerConfig(**(sizes | more))).eval()


# ------------------------------------------------------------------------------------------------------ data


def test_every_fifth_picture_is_held_out_with_all_its_captions(table: str) -> None:
    _, corpus = read(table)
    assert [Path(name).stem for name in corpus.valid.sources.names] == ["4", "9", "14", "19"]
    assert corpus.valid.targets[1] == [  # picture 9 has one caption, 19 two
        "a a a a fox 9 goes to North"
    ]
    assert len(corpus.train.sources) == 19
    assert len(corpus.train) == sum(map(len, corpus.train.targets)) == 37
    assert corpus.model_settings == {"size": 12, "channels": 3}
    assert corpus.train.fingerprint() != corpus.valid.fingerprint() == read(table)[1].valid.fingerprint()


def test_without_data_shapes_are_drawn_and_measured_on_other_combinations() -> None:
    corpus = Caption.read(DataRequest([], [], CaptionData(), CaptionConfig(name="caption"), 64))
    trained, held = (
        {text for captions in part.targets for text in captions} for part in (corpus.train, corpus.valid)
    )
    assert len(trained) > 1000
    assert len(held) > 200
    assert not trained & held
    assert corpus.tokenizer.decode(corpus.train.ids.ids[: corpus.train.ids.lengths[0]]) in trained


def test_a_batch_is_pictures_and_captions_begun_and_ended(table: str) -> None:
    task, corpus = read(table)
    samples = task.samples(corpus.train, 5, 7, None)
    rows = samples.rows(2)
    pixels, how, target, following = task.batch(samples, rows)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (7, 3, 12, 12)
    assert len(how) == 7
    for picture, read_, expected in zip(pixels, target, following, strict=True):
        n = int((expected != IGNORED).sum())
        assert read_[0] == task.begin
        assert expected[n - 1] == task.end
        assert torch.equal(read_[1:n], expected[: n - 1])
        which = [i for i, p in enumerate(corpus.train.sources[:]) if torch.equal(p, picture)]
        texts = [text.lower() for text in corpus.train.targets[which[0]]]  # as the tokenizer has them
        assert task.tokenizer.decode(expected[: n - 1].tolist()) in texts
    alone = task.batch(samples, rows[3:4])
    assert torch.equal(alone[0][0], pixels[3])
    assert torch.equal(alone[1][0], how[3])


def test_an_epoch_has_every_caption_once(table: str) -> None:
    task, corpus = read(table)
    samples = task.samples(corpus.train, 5, 5, None)
    order = [int(i) for step in range(15) for i in samples.at(samples.rows(step))]
    assert sorted(order[:37]) == sorted(order[37:74]) == list(range(37))
    assert order[:37] != order[37:74]


def test_all_in_order_is_every_caption_once(table: str) -> None:
    task, corpus = read(table)
    texts = []
    for pixels, _, following in task.evaluation_batches(corpus.train, 92):
        assert len(pixels) <= 4  # of 23 tokens at most
        for row in following:
            texts.append(task.tokenizer.decode(row[(row != IGNORED) & (row != task.end)].tolist()))
    assert sorted(texts) == sorted(text.lower() for captions in corpus.train.targets for text in captions)


def test_long_captions_are_cut_and_counted(table: str) -> None:
    corpus = Caption.read(DataRequest([table], (), CaptionData(vocab=320), CaptionConfig(name="caption"), 7))
    assert corpus.notes
    assert corpus.notes[0].startswith("cut ")
    task = Caption(CaptionConfig(name="caption", size=12, channels=3), corpus.tokenizer, 7)
    assert max(batch[1].shape[1] for batch in task.evaluation_batches(corpus.train, 700)) == 7


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"mixup": 0.2}, "two captions"), ({"evenly": -1.0}, "evenly"), ({"smoothing": 1.0}, "smoothing")],
)
def test_settings_that_make_no_sense(wrong: dict[str, float], why: str) -> None:
    user_error(lambda: fill("task", {"name": "caption"} | wrong, CaptionConfig), why)


# ------------------------------------------------------------------------------------------------------ loss


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_the_loss_is_the_smoothed_cross_entropy_and_the_uneven_looks(table: str, decoder: str) -> None:
    """Xu et al. 2015, eq. 14: λ Σ_i (1 - Σ_t α_ti)² of each picture, over the words of its caption."""
    task, corpus = read(table, evenly=0.7, smoothing=0.2)
    model = model_of(task, decoder=decoder).train()
    samples = task.samples(corpus.train, 5, 6, None)
    pixels, how, target, following = task.batch(samples, samples.rows(0))
    with watch(model) as records:
        logits = model(pixels, target)
    want = F.cross_entropy(
        logits.flatten(0, 1),
        following.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=0.2,
    )
    if decoder == "lstm":
        alpha = torch.cat([record["weights"] for record in records["decoder.look"]], dim=2)[:, 0]
        for row, expected in zip(alpha, following, strict=True):
            n = int((expected != IGNORED).sum())
            want = want + 0.7 * (1 - row[:n].sum(0)).square().sum()
    assert_close(task.loss(model, pixels, how, target, following), want)
    nothing = torch.full_like(following, IGNORED)
    assert task.loss(model, pixels, how, target, nothing).item() == 0  # as of an idle process

    model.eval()
    plain = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="sum")
    assert_close(task.loss(model, pixels, target, following), plain)


def test_pictures_are_changed_while_learning_only(table: str) -> None:
    task, corpus = read(table, flip=True)
    model = model_of(task).train()
    samples = task.samples(corpus.train, 5, 20, None)
    pixels, how, target, following = task.batch(samples, samples.rows(0))
    mirrored = how[:, 0] < 0
    assert 0 < mirrored.sum() < 20
    flipped = torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)
    still = torch.from_numpy(np.abs(how.numpy()))
    assert_close(
        task.loss(model, pixels, how, target, following), task.loss(model, flipped, still, target, following)
    )


# --------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_cached_is_uncached_and_batched_is_alone(table: str, decoder: str) -> None:
    task, corpus = read(table)
    model, pictures = model_of(task, decoder=decoder), corpus.train.sources[:5]
    with torch.no_grad():  # so that answers differ, and have no end
        model.output.normal_()
        model.output[: len(task.specials)] = 0
    for sampling in (GREEDY, Sampling(max_new_tokens=11, seed=3)):
        prompts = [[task.begin]] * 5

        def tokens(**more: Any) -> list[list[int | None]]:
            steps = generate(model, prompts, sampling, sources=pictures, end=task.end, samples=2, **more)  # noqa: B023
            return [list(row) for row in steps]

        assert tokens() == tokens(cached=False)
    for sampling in (GREEDY, Sampling(max_new_tokens=11, num_beams=3)):
        together = task.answers(model, Request([*pictures, pictures[0]], sampling))
        assert len({several[0].text for several in together}) > 1
        assert together[5][0].text == together[0][0].text
        for picture, (answer,) in zip(pictures, together, strict=False):
            ((alone,),) = task.answers(model, Request([picture], sampling))
            assert alone.text == answer.text
            assert alone.score == (answer.score and pytest.approx(answer.score, rel=1e-4))


def test_different_pictures_draw_different_numbers(table: str) -> None:
    task, corpus = read(table)
    model, (one, two) = model_of(task), corpus.train.sources[:2]
    sampling = Sampling(max_new_tokens=11, seed=3)
    with torch.no_grad():  # all words are as likely, whatever is seen
        model.output.zero_()
    (a,), (b,), (c,) = task.answers(model, Request([one, two, one], sampling))
    assert a.text == c.text != b.text


def test_a_file_is_asked_about_and_streamed(table: str, tmp_path: Path) -> None:
    model = train("caption", table, out=tmp_path / "out", steps=2, set=TINY)
    picture = str(Path(table).with_suffix("") / "3.png")
    answer = model.ask(picture, num_beams=1)
    assert "".join(model.stream(picture, num_beams=1)) == answer
    assert model.ask([picture, picture]) == [model.ask(picture)] * 2
    assert model.ask(picture, prefix="fox").startswith("fox")
    assert len(model.ask(picture, num_return_sequences=3)) == 3
    again = regard.load(tmp_path / "out", "cpu")
    assert again.ask(picture, num_beams=1) == answer
    user_error(lambda: model.ask("nowhere.png"), "nowhere.png", "no such image")
    (tmp_path / "text.png").write_text("no picture")
    user_error(lambda: model.ask(str(tmp_path / "text.png")), "text.png", "PNG")

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for wrong in ({"size": 3000}, {"size": 10**7}, {"channels": 1}):  # which the model does not read
        (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"task": config["task"] | wrong}))
        user_error(lambda: regard.load(tmp_path / "out", "cpu"), "config.json", "task.size")

    larger = tmp_path / "larger.png"
    Image.open(picture).resize((48, 48), Image.Resampling.NEAREST).save(larger)
    assert isinstance(model.ask(str(larger)), str)


def test_scores_are_by_all_references(table: str, tmp_path: Path) -> None:
    model = train("caption", table, out=tmp_path / "out", steps=2, set=TINY)
    scores = model.score(table)
    assert {"loss", "perplexity", "bleu", "bleu_1", "cider", "chrf", "exact"} <= set(scores)
    data = model.task.held_out([table])
    answers = model.ask(data.sources[:])
    assert (
        scores["exact"] == sum(a in captions for a, captions in zip(answers, data.targets, strict=True)) / 23
    )
    compared = model.score(table, against=model)
    assert compared["bleu_p"] == 1


def test_where_it_looked_is_a_map_for_every_word(table: str) -> None:
    for decoder in "lstm", "transformer":
        task, corpus = read(table)
        model = model_of(task, decoder=decoder, decoder_depth=2)
        weights, words, _ = task.cross_attention(model, corpus.train.sources[:1][0], "fox 3 goes")
        assert words == ["fox", "3", "goes", "</s>"]
        assert weights.shape == (4, 3, 3)
        assert_close(weights.sum((1, 2)), torch.ones(4))


def test_efficientnet_starts_from_its_weights(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.convert import efficientnet as weights
    from regard.vision.cnn import EfficientNet

    asked, torch_net = [], EfficientNet()

    def theirs(path: str | None) -> dict[str, torch.Tensor]:
        asked.append(path)
        return torch_net.state_dict()

    monkeypatch.setattr(weights, "load_efficientnet", theirs)
    settings = TINY | {"model.encoder": "efficientnet", "model.zoom": 3, "data.weights": "some.pth"}
    settings |= {"train.freeze": 1}
    model = train("caption", table, out=tmp_path / "out", steps=2, set=settings)
    assert asked == ["some.pth"]
    for name, t in torch_net.state_dict().items():
        assert torch.equal(model.model.encoder.net.state_dict()[name].cpu(), t)
    train("caption", table, out=tmp_path / "out", steps=3, resume=True)
    assert asked == ["some.pth"]  # once: what is resumed has its own


# --------------------------------------------------------------------------------- what is learnt from shapes


def score_answers(model: Any, count: int) -> tuple[float, float, float]:
    """For combinations that are not in the training data: the share of correct captions; and for the word
    of each shape, the share of attention in its box, and the share that uniform attention would have."""
    shapes = draw_shapes(seed=7, count=count, held_out=True)
    pictures = list(torch.from_numpy(shapes.pixels))
    right = np.mean([a == c for a, c in zip(model.ask(pictures), shapes.captions, strict=True)])
    inside, area = zip(*looks(model, pictures, shapes), strict=True)
    return float(right), float(np.mean(inside)), float(np.mean(area))


def looks(model: Any, pictures: list[torch.Tensor], shapes: Any) -> Iterator[tuple[float, float]]:
    for picture, caption, boxes in zip(pictures, shapes.captions, shapes.boxes, strict=True):
        weights, words, _ = model.task.cross_attention(model.model, picture, caption)
        cell = SIZE / weights.shape[1]
        at = (torch.arange(weights.shape[1]) + 0.5) * cell
        places = [i for i, word in enumerate(words) if word in KINDS]
        for i, (x0, y0, x1, y1) in zip(places, boxes.values(), strict=True):
            # regions that the box touches by half at least
            x, y = (at > x0 - cell / 2) & (at < x1 + cell / 2), (at > y0 - cell / 2) & (at < y1 + cell / 2)
            mask = y[:, None] & x
            yield float(weights[i][mask].sum()), float(mask.float().mean())


@pytest.mark.slow
def test_soon_it_looks_at_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention finds the shapes long before their names are correct."""
    unmeasured(monkeypatch)
    settings = {"train.lr": 4e-3, "train.warmup": 30, "model.dropout": 0.0, "task.smoothing": 0.0}
    settings |= {"train.evaluate": 1000, "train.device": "cpu"}
    model = train("caption", out=tmp_path / "out", steps=200, set=settings)
    right, inside, area = score_answers(model, 101)
    assert right > 0.05  # of about 450 combinations
    assert inside > 0.38 > 1.5 * area


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_unseen_combinations_are_captioned_rightly_and_looked_at(tmp_path: Path, decoder: str) -> None:
    settings = {"model.decoder": decoder, "train.device": "cpu"}
    model = train("caption", out=tmp_path / "out", set=settings)
    right, inside, area = score_answers(model, 401)
    assert right >= 0.95
    assert inside > 0.48 > 2 * area
