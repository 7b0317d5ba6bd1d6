"""Sentence vectors: how they are computed, trained on pairs and on scores, and searched."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.runs import at_step, same, stopped, tiny
from regard import cli
from regard.data import DataConfig
from regard.decode.sampling import Sampling
from regard.models import Bert, BertConfig, ModelWithHead
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import embed as module
from regard.tasks import idle, similarity, targets
from regard.tasks.embed import Embed, EmbedConfig
from regard.tasks.request import DataRequest, Request
from regard.tasks.similarity import LineIndex
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

PAIRS = [
    ("The cat sleeps", "A cat is asleep"),
    ("Dogs bark", "There is a dog that barks"),
    ("It rains", "Rain falls from the sky today"),
    ("I like tea very much", "Tea is what I like"),
    ("He went home", "He is at home now"),
    ("She sings a song", "A song is sung"),
    ("We eat bread", "Bread is eaten"),
]
TEXTS = [text for pair in PAIRS for text in pair]
TINY = {
    "model.dim": 8, "model.depth": 1, "model.context": 13, "model.dropout": 0.0, "data.vocab": 90,
    "train.batch": 3, "train.lr": 0.01, "train.warmup": 1, "train.log": 1, "train.device": "cpu",
}  # fmt: skip


def task_of(context: int = 29, **settings: Any) -> Embed:
    tokenizer = train_tokenizer("wordpiece", TEXTS, 90, Embed.specials)
    return Embed(EmbedConfig(name="embed", **settings), tokenizer, context)


def model_of(task: Embed) -> Any:
    model = Bert(BertConfig(vocab=task.tokenizer.vocab, context=task.context, dim=10, depth=2, heads=2))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return Embed.add_head(model, task.config)


def batch_of(task: Embed, pairs: Any = PAIRS, scores: list[float] | None = None) -> Any:
    examples, _ = task.examples(pairs, scores)
    return task.collate(examples, np.arange(len(examples)))


def write(path: Path, rows: Any) -> str:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), "utf-8")
    return str(path)


# Vectors


@torch.no_grad()
def test_a_vector_is_the_mean_of_the_tokens() -> None:
    task = task_of()
    model = model_of(task).eval()
    for normalize in (True, False):
        vectors = task_of(normalize=normalize).vectors(model, TEXTS)
        for text, vector in zip(TEXTS, vectors, strict=True):
            ids = [task.first, *task.tokenizer.encode(text), task.end]
            y = model.encode(torch.tensor([ids]))[0].mean(0)
            assert_close(vector, F.normalize(y, dim=0) if normalize else y, atol=1e-5, rtol=1e-5)
    assert_close(task.vectors(model, TEXTS[3:4])[0], task.vectors(model, TEXTS)[3])
    first = task_of(pooling="first", normalize=False).vectors(model, TEXTS[:1])[0]
    ids = [task.first, *task.tokenizer.encode(TEXTS[0]), task.end]
    assert_close(first, model.encode(torch.tensor([ids]))[0, 0])
    assert task.vectors(model, []).shape == (0, 10)
    assert task.vectors(model, [""]).isfinite().all()


def test_what_is_too_long_loses_its_end() -> None:
    task = task_of(longest=5)
    long = np.arange(20, 31)
    ids, cut = task.frame(long)
    assert cut
    assert ids.tolist() == [task.first, 20, 21, 22, task.end]
    assert not task.frame(long[:3])[1]
    assert task_of(context=4).room == 4
    _, notes = task.examples(PAIRS, None)
    assert "to 5 tokens" in notes[0]


# Learning


def plain(u: Tensor, v: Tensor, temperature: float) -> float:
    """Row by row, both ways."""
    loss = 0.0
    for x, y in ((u, v), (v, u)):
        for i in range(len(x)):
            cosines = torch.stack([F.cosine_similarity(x[i], other, dim=0) for other in y])
            loss -= float((cosines / temperature).log_softmax(0)[i]) / 2
    return loss


def test_the_loss_is_info_nce_both_ways() -> None:
    task = task_of(temperature=0.7)
    model, batch = model_of(task), batch_of(task)
    assert targets(batch) == task.batch_length(batch) == 7
    u, v = (task.vectors(model, [pair[side] for pair in PAIRS]) for side in (0, 1))
    model.eval()
    with torch.no_grad():
        loss, right = task.measure(model, *batch)
        assert float(loss) == pytest.approx(plain(u, v, 0.7), rel=1e-5)
        assert float(loss) == pytest.approx(float(task.loss(model, *batch)), rel=1e-6)
    assert int(right) == int(((u @ v.T).argmax(1) == torch.arange(7)).sum())
    model.train()
    lost = task.loss(model, *idle(batch))
    lost.backward()
    assert lost.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_what_means_the_same_is_no_negative() -> None:
    task = task_of()
    u, v = (F.normalize(torch.randn(4, 5), dim=1) for _ in range(2))
    #                    a  b      another partner of 0   the same partner as 0's   1's source as partner
    who = torch.tensor([[0, 1], [0, 2], [3, 1], [4, 0]])
    forth, back = task.logits(u, v, who, torch.zeros(4, dtype=torch.long))
    assert (forth == -torch.inf).tolist() == [
        [False, True, True, True],
        [True, False, False, True],
        [True, False, False, False],
        [False, False, False, False],
    ]
    assert (back == -torch.inf).tolist() == [
        [False, True, True, False],
        [True, False, False, False],
        [True, False, False, False],
        [True, True, False, False],
    ]
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = task.logits(u, v, who, torch.zeros(4, dtype=torch.long))
    assert rounded.equal(forth)
    absent, _ = task.logits(u, v, torch.arange(8).view(4, 2), torch.tensor([0, -100, 0, 0]))
    assert absent[0].isinf().tolist() == [False, True, False, False]


@torch.no_grad()
def test_scores_are_learnt_as_cosines() -> None:
    task, scores = task_of(low=1.0, high=5.0), [1.0, 2.0, 3.0, 4.0, 5.0, 2.5, 3.5]
    model, batch = model_of(task).eval(), batch_of(task, scores=scores)
    assert batch[-1].tolist() == [0, 0.25, 0.5, 0.75, 1, 0.375, 0.625]
    u, v = (task.vectors(model, [pair[side] for pair in PAIRS]) for side in (0, 1))
    expected = float(((u * v).sum(1) - batch[-1]).square().sum())
    assert float(task.loss(model, *batch)) == pytest.approx(expected, rel=1e-5)
    assert float(task.loss(model, *idle(batch))) == 0
    parts = [task.collate(task.examples(PAIRS, scores)[0], rows) for rows in np.array_split(np.arange(7), 3)]
    assert float(sum(task.loss(model, *part) for part in parts)) == pytest.approx(expected, rel=1e-5)


def test_only_the_encoder_learns() -> None:
    task = task_of()
    model = model_of(task).train()
    task.loss(model, *batch_of(task)).backward()
    for name, p in model.named_parameters():
        assert p.requires_grad == (p.grad is not None), name
    assert not model.pooler.weight.requires_grad
    assert Embed.add_head(ModelWithHead(model, 3), task.config) is model


# Data


def read(*paths: str, valid: tuple[str, ...] = (), **settings: Any) -> Any:
    config = EmbedConfig(name="embed", **settings)
    return Embed.read(DataRequest(paths, valid, DataConfig(tokenizer="wordpiece", vocab=90), config, 13))


def test_data_of_all_kinds(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.tsv", [("", "alone"), *PAIRS])
    corpus = read(pairs)
    assert (len(corpus.train), len(corpus.valid), corpus.task_settings) == (6, 1, {})
    assert "dropped 1 of" in " ".join(corpus.notes)
    assert corpus.train.describe() == "6 pairs"
    sides = [write(tmp_path / f"{side}.txt", [[pair[side]] for pair in PAIRS]) for side in (0, 1)]
    assert read(*sides).train.fingerprint() == read(write(tmp_path / "b.tsv", PAIRS)).train.fingerprint()
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": a, "other": b, "score": i}) + "\n" for i, (a, b) in enumerate(PAIRS))
    )
    scored = read(str(tmp_path / "a.jsonl"), valid=(str(tmp_path / "a.jsonl"),))
    assert scored.task_settings == {"low": 0.0, "high": 6.0, "metric": "spearman"}
    assert scored.valid.labels.tolist() == pytest.approx([i / 6 for i in range(7)])
    assert scored.train.describe() == "7 pairs with scores"
    csv = write(tmp_path / "a.csv", [["text,other,score"], ["a,b,1"], ["c,d,3"]])
    assert read(csv, valid=(csv,)).task_settings == {"low": 1.0, "high": 3.0, "metric": "spearman"}
    assert read(csv, valid=(csv,), low=0.0, high=4.0).train.labels.tolist() == [0.25, 0.75]


def test_data_that_will_not_do(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.tsv", PAIRS)
    scored = write(tmp_path / "s.tsv", [("text", "other", "score"), ("a", "b", 1), ("c", "d", 1)])
    classes = write(tmp_path / "c.tsv", [("text", "label"), ("a", "x"), ("c", "y")])
    user_error(lambda: read(pairs, valid=(scored,)), "only one", "scores")
    user_error(lambda: read(scored), scored, "all scores are 1")
    user_error(lambda: read(classes), classes, "text, label", "text, other and score")
    user_error(lambda: read(write(tmp_path / "e.tsv", [("a", ""), ("", "b")])), "e.tsv", "both sides")
    user_error(lambda: task_of().held_out([str(tmp_path / "none.tsv")]), "none.tsv", "no such file")
    with pytest.raises(ValueError, match="temperature=0"):
        EmbedConfig(name="embed", temperature=0)


# Scoring


def test_scores(tmp_path: Path) -> None:
    task = task_of()
    model = Model(model_of(task).eval(), task, {})
    u, v = (model.embed([pair[side] for pair in PAIRS]) for side in (0, 1))
    scores = model.score(write(tmp_path / "a.tsv", PAIRS), details=True)
    assert scores["rows"] == 7
    assert scores["recall_at_1"] == pytest.approx(
        float(((u @ v.T).argmax(1) == torch.arange(7)).float().mean())
    )
    assert scores["loss"] == pytest.approx(plain(u, v, 0.05) / 7, rel=1e-4)
    rows = [(*pair, score) for pair, score in zip(PAIRS, [3, 1, 4, 1.5, 5, 2, 0], strict=True)]
    scored = write(tmp_path / "s.tsv", [("text", "other", "score"), *rows])
    scores = model.score(scored)
    cosines = (u * v).sum(1)
    ranks = [torch.tensor(x).argsort().argsort().double() for x in (cosines.tolist(), [r[2] for r in rows])]
    assert scores["spearman"] == pytest.approx(float(torch.corrcoef(torch.stack(ranks))[0, 1]))
    assert set(scores) == {"loss", "spearman", "pearson"}
    user_error(lambda: model.score(scored, against=model), "--against")


def test_recall_in_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task, pairs = task_of(), write(tmp_path / "a.tsv", [*PAIRS, ("It rains", PAIRS[4][1])])
    model = Model(model_of(task).eval(), task, {})
    scores = model.score(pairs)
    monkeypatch.setattr(module, "LINES_AT_ONCE", 3)
    assert model.score(pairs) == scores


# Asking


def test_ask_tells_vectors() -> None:
    task = task_of()
    model = Model(model_of(task).eval(), task, {})
    vectors = [json.loads(line) for line in model.ask(TEXTS[:2])]
    assert_close(torch.tensor(vectors), model.embed(TEXTS[:2]), atol=1e-6, rtol=0)
    assert json.loads(model.ask(TEXTS[0])) == vectors[0]
    assert list(model.stream(TEXTS[0])) == [model.ask(TEXTS[0])]
    assert model.embed(TEXTS[0]).shape == (1, 10)


def test_the_nearest_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = task_of(normalize=False)
    model = Model(model_of(task).eval(), task, {})
    lines = [*TEXTS, "", "  ", "größer", "größer"]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), "utf-8")
    texts = [line for line in lines if line.strip()]
    cosines = F.cosine_similarity(model.embed(["It is home"]), model.embed(texts))
    for at_once, block in ((4096, 65536), (3, 5)):
        monkeypatch.setattr(similarity, "LINES_AT_ONCE", at_once)
        monkeypatch.setattr(similarity, "VECTORS_AT_ONCE", block)
        task.lines = None
        for many in (None, 1, 4, 99):
            (nearest,) = model.answers(["It is home"], within=str(path), num_return_sequences=many)
            best = cosines.topk(min(many or 5, len(texts)))
            assert [answer.score for answer in nearest] == pytest.approx(best.values.tolist(), abs=2e-6)
            for answer, cosine in zip(nearest, best.values.tolist(), strict=True):
                assert abs(float(cosines[texts.index(answer.text)]) - cosine) < 2e-6
    assert len(task.lines or ()) == 16
    assert model.ask("größer", within=str(path), num_return_sequences=2) == ["größer", "größer"]
    (tmp_path / "empty.txt").write_text("\n \n")
    user_error(lambda: model.ask("a", within=str(tmp_path / "empty.txt")), tmp_path / "empty.txt")
    user_error(lambda: model.ask("a", within=str(tmp_path / "none.txt")), "no such file")
    assert isinstance(task.lines, LineIndex)
    assert [
        len(answers) for answers in task.answers(model.model, Request(["a", "b"], Sampling(), samples=3))
    ] == [
        1,
        1,
    ]


# Runs


def test_no_folder_names_the_file_whose_lines_are_the_answers(tmp_path: Path) -> None:
    """Or a model from elsewhere would show any file of the machine, also to clients of a server."""
    (tmp_path / "secret.txt").write_text("a secret\n")
    (tmp_path / "a.tsv").write_text("".join(f"a fox {n}\ta dog {n}\n" for n in range(30)))
    tiny(str(tmp_path / "a.tsv"), tmp_path / "run", "embed-bert", steps=1)
    settings = tmp_path / "run" / "generation_config.json"
    settings.write_text(json.dumps({"within": str(tmp_path / "secret.txt")}))
    user_error(lambda: load(tmp_path / "run").ask("a fox"), settings, "within")


def test_a_run_learns_goes_on_and_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "a.tsv", PAIRS)
    options: dict[str, Any] = {"valid": data, "steps": 40, "set": TINY | {"train.batch": 7}}
    model = train("embed", data, out=tmp_path / "a", **options)
    assert model.score(data)["recall_at_1"] == 1
    with stopped(Trainer, "train_step", at_step(23)):
        train("embed", data, out=tmp_path / "b", **options)
    train("embed", data, out=tmp_path / "b", **options, resume=True)
    same(tmp_path / "a", tmp_path / "b", state=False)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(pair[1] for pair in PAIRS))

    def said(*arguments: object) -> str:
        with pytest.raises(SystemExit) as left:
            cli.main(["ask", *map(str, arguments)])
        assert left.value.code == 0
        return capsys.readouterr().out

    for a, b in PAIRS:
        (line,) = said(tmp_path / "a", a, "--in", lines, "--num-return-sequences", 1).splitlines()
        cosine, text = line.split("\t")
        assert text == b
        assert 0 < float(cosine) <= 1
    assert len(said(tmp_path / "a", "He went home", "--in", lines).splitlines()) == 5
    answers = [json.loads(line) for line in said(tmp_path / "a", "We", "--in", lines, "--json").splitlines()]
    assert [set(row) for row in answers] == [{"input", "output", "score"}] * 5
    assert len(json.loads(said(tmp_path / "a", "We eat bread"))) == 8


def test_others_have_nothing_to_search_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "c.tsv", [("text", "label")] + [(f"text {i}", "ab"[i % 2]) for i in range(20)])
    train("classify", data, out=tmp_path / "c", steps=1, set=TINY)
    with pytest.raises(SystemExit) as left:
        cli.main(["ask", str(tmp_path / "c"), "a", "--in", data])
    assert left.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "--in" in said.splitlines()[-1]
    user_error(lambda: load(tmp_path / "c").embed(["a"]), "does not embed texts")
    user_error(lambda: load(tmp_path / "c").ask("a", within=data), "within is not an option")


def test_a_batch_is_not_cut(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tsv", PAIRS)
    settings = TINY | {"train.micro": 2}
    user_error(
        lambda: train("embed", data, out=tmp_path / "a", steps=1, set=settings), "train.micro=2", "batch"
    )
    assert not (tmp_path / "a").exists()


def test_going_on_from_other_tasks_and_to_them(tmp_path: Path) -> None:
    """Heads are added and removed, and weights that one task freezes are trained by the next."""
    data = write(tmp_path / "a.tsv", PAIRS)
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"{a}.\n{b}." for a, b in PAIRS))
    settings = {k: v for k, v in TINY.items() if k.startswith("train.")}
    train("embed", data, out=tmp_path / "e", steps=1, set=TINY | {"task.pooling": "first", "task.longest": 7})
    again = train("embed", data, out=tmp_path / "e2", base=tmp_path / "e", steps=1, set=settings)
    assert (again.task.config.pooling, again.task.config.longest) == ("first", 7)
    labels = write(tmp_path / "c.tsv", [("text", "label"), *((a, "x") for a, _ in PAIRS), ("b", "y")])
    train("classify", labels, out=tmp_path / "c", base=tmp_path / "e", steps=1, set=settings)
    train("embed", data, out=tmp_path / "e3", base=tmp_path / "c", steps=1, set=settings)
    more = settings | {"task.next": False, "data.holdout": 0.0}
    train("fill", str(text), out=tmp_path / "f", base=tmp_path / "e3", steps=2, set=more)
    before, after = (load_file(tmp_path / run / "model.safetensors") for run in ("e3", "f"))
    for name in ("transform.weight", "embed.weight", "blocks.0.ffn.f.up.weight"):
        assert not before[name].equal(after[name]), name
