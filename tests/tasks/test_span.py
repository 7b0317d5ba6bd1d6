"""Answers in a text: positions in characters and tokens, overlapping windows, and training."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers.errors import user_error
from helpers.labelling import TINY, tiny_model
from regard.data import DataConfig
from regard.data.spans import Span
from regard.decode.sampling import Sampling
from regard.runs.load import load
from regard.tasks import SpanTask, SpanTaskConfig, targets
from regard.tasks import metrics as scoring
from regard.tasks.request import DataRequest, Request
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

TEXT = (
    "Jörg Müller ging 1848 nach Köln.  In Köln, über dem Rhein, blieb Jörg Müller 20 Jahre; "
    "nach Köln zog’s ihn."
)
KINDS = ["wordpiece", "bpe", "char", "byte", "unigram", "word"]
NAMES, PLACES = ["Anna", "Björn", "Kim", "Leo", "Mia"], ["Bonn", "Köln", "Sankt Gallen", "Rome"]
ROWS = [
    (question, f"{name} lives in {place}. The sun is warm.", answer)
    for name in NAMES
    for place in PLACES
    for question, answer in (("Who lives there?", name), ("Where is it warm?", place))
]
SMALL = TINY | {"model.context": 41}


def jsonl(path, rows):
    keys = ("question", "context", "answer", "start")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=False))) + "\n" for row in rows))
    return str(path)


def tokenizer(kind):
    texts = [TEXT] + [text for row in ROWS for text in row]
    return train_tokenizer(kind, texts, 300, SpanTask.specials)


def task_of(kind, context=199, **more):
    return SpanTask(SpanTaskConfig(name="span", **more), tokenizer(kind), context)


def all_of(text, word):
    """All positions of a word."""
    return [i for i in range(len(text)) if text.startswith(word, i)]


# Places


@pytest.mark.parametrize("kind", KINDS)
def test_places_go_to_tokens_and_back(kind):
    """For every word, also with umlauts and repeated words."""
    task = task_of(kind)
    ((window,),) = task.windows([("Wer?", TEXT)])
    ends = [0, *(i for i, c in enumerate(TEXT) if c == " "), len(TEXT)]
    words = [(a, b) for i, a in enumerate(ends) for b in ends[i + 1 : i + 4]]
    for a, b in words:
        word = TEXT[a:b].strip()
        if not word:
            continue
        start = a + TEXT[a:b].index(word)
        first, last = window.place(start, start + len(word))
        assert 0 < first <= last
        (s, _), (_, e) = (window.offsets[i - window.second] for i in (first, last))
        assert (s, TEXT[s:e]) == (start, word)


def test_places_by_hand():
    task = task_of("word")
    ((window,),) = task.windows([("Who lives there?", "Anna lives in Köln. Köln lives in Anna")])
    names = [task.tokenizer.inner.id_to_token(id) for id in window.ids]
    assert names[:5] == ["[CLS]", "Who", "lives", "there?", "[SEP]"]
    assert window.second == 5
    assert names[-1] == "[SEP]"
    assert window.may == [True] + [False] * 4 + [True] * 8 + [False]
    assert window.place(0, 4) == (5, 5)
    assert window.place(34, 38) == (12, 12)
    assert window.place(5, 18) == (6, 8)
    task = task_of("char")
    ((window,),) = task.windows([("W", "in  Köln")])
    assert window.may == [True, False, False, True, True, False, False, True, True, True, True, False]
    assert window.place(4, 8) == (7, 10)


def test_spaces_around_an_answer_are_no_part_of_it():
    task = task_of("char")
    examples, notes = task.examples([Span("Where", "in  Köln now", "  Köln ", 2)])
    assert notes == []
    assert examples.places.tolist() == [[7 + 4, 7 + 7]]  # [CLS], five characters, [SEP]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char"])
@pytest.mark.parametrize("context", [13, 29])
def test_parts_overlap_by_half_and_cover_the_text(kind, context):
    task = task_of(kind, context)
    (windows,) = task.windows([("Who lives?", TEXT)])
    encoded = task.tokenizer.inner.encode(TEXT, add_special_tokens=False)
    assert all(len(w.ids) <= context for w in windows)
    assert all(len(w.ids) == context for w in windows[:-1])
    width = context - 1 - windows[0].second
    parts = [w.ids[w.second : -1] for w in windows]
    step = width // 2
    for i, (part, window) in enumerate(zip(parts, windows, strict=True)):
        assert part == encoded.ids[i * step : i * step + width]
        there = [(window.offsets[k], encoded.offsets[i * step + k]) for k in range(len(part))]
        assert all(TEXT[a:b] == TEXT[c:d].strip() for (a, b), (c, d) in there)
    assert parts[-1][-1] == encoded.ids[-1]
    assert (len(parts) - 2) * step + width < len(encoded.ids)  # no part too many
    # windows with the whole answer point to it, others to [CLS]
    start = all_of(TEXT, "Köln")[1]
    examples, _ = task.examples([Span("Who lives?", TEXT, "Köln", start)])
    assert len(examples) == len(windows)
    answerable = 0
    for window, (first, last) in zip(windows, examples.places.tolist(), strict=True):
        offsets = [o for o, m in zip(window.offsets, window.may[window.second :], strict=False) if m]
        inside = offsets[0][0] <= start and start + 4 <= offsets[-1][1]
        assert bool(first) == inside
        if inside:
            a, b = window.offsets[first - window.second][0], window.offsets[last - window.second][1]
            assert TEXT[a:b] == "Köln"
            answerable += 1
        else:
            assert (first, last) == (0, 0)
    assert answerable in (1, 2, 3)


def test_what_does_not_fit_is_said():
    task = task_of("char", 23)
    long = Span("Who lives in this place, then?", TEXT, TEXT[:40], 0)
    examples, notes = task.examples([long, Span("W", "Köln", "Köln", 0)])
    assert "1 of 2 texts" in notes[0]
    assert "1 of 2 answers" in notes[1]
    assert not examples.places[:-1].any()
    assert examples.ids.lengths.max() <= 23
    assert examples.describe() == f"2 questions in {len(examples)} parts"


# Loss


@pytest.mark.parametrize("segments", [2, 0])
def test_loss_and_measure_are_torchs(segments):
    task = task_of("wordpiece", 19)
    model = tiny_model(task, segments=segments).eval()
    spans = [Span(q, c, a, c.index(a)) for q, c, a in ROWS[:9]] + [Span("Who?", TEXT, "20 Jahre", 77)]
    examples, _ = task.examples(spans)
    assert TEXT[77:85] == "20 Jahre"
    ((ids, attention_mask, kinds, may, labels),) = task.evaluation_batches(examples, 10**6)
    assert not attention_mask.all()
    assert targets((labels,)) == 2 * len(examples)
    assert labels.shape == (len(examples), 2)
    x = model(ids, attention_mask, kinds if segments else None)
    x = x.masked_fill(~may[..., None], -1e9)
    want = sum(F.cross_entropy(x[..., i], labels[:, i], reduction="sum") for i in (0, 1))
    torch.testing.assert_close(task.loss(model, ids, attention_mask, kinds, may, labels), want)
    loss, right, both = task.measure(model, ids, attention_mask, kinds, may, labels).tolist()
    assert loss == pytest.approx(want.item(), rel=1e-5)
    assert right == (x.argmax(1) == labels).sum()
    assert both == sum(map(torch.equal, x.argmax(1), labels))
    assert task.metrics(6.0, 4, examples, 3, 1) == {"loss": 1.5, "accuracy": 0.75, "spans": 0.5}
    parts = [task.measure(model, *batch) for batch in task.evaluation_batches(examples, 40)]
    assert sum(parts).tolist() == pytest.approx([loss, right, both], rel=1e-5)
    assert sum(task.batch_length(batch) for batch in task.evaluation_batches(examples, 40)) == len(examples)
    idle = torch.full_like(labels, -100)
    assert task.loss(model, ids, attention_mask, kinds, may, idle) == 0
    for name, p in model.named_parameters():
        p.grad = None
        assert p.requires_grad != any(part in name for part in ("transform", "pooler", "next", "model.bias"))
    task.loss(model, ids, attention_mask, kinds, may, labels).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_a_question_and_its_text_may_be_two_arguments():
    join = task_of("wordpiece").join_arguments
    assert join(["Who sleeps?", "The fox."]) == ["Who sleeps?\tThe fox."]
    for apart in (["Who?\tThe fox.", "When?\tToday."], ["Who?"], ["a", "b", "c"]):
        assert join(apart) == apart


# Which span


def test_the_best_span_is_the_best_of_all():
    """Compared with all spans of all windows: not longer than allowed, and never backwards."""
    task = task_of("wordpiece", 17, longest=3)
    model = tiny_model(task).eval()
    torch.nn.init.normal_(model.head.weight)
    ((answer, *more),) = task.answers(model, Request([("Who lives?", TEXT)], Sampling(), samples=7))
    scores = {}
    for window in task.windows([("Who lives?", TEXT)])[0]:
        n, second = len(window.ids), window.second
        x = model(torch.tensor([window.ids]), None, torch.tensor([[int(i >= second) for i in range(n)]]))[0]
        p = x.detach().masked_fill(~torch.tensor(window.may)[:, None], -1e9).softmax(0)
        for i in range(second, n - 1):
            for j in range(i, min(i + 3, n - 1)):
                place = window.offsets[i - second][0], window.offsets[j - second][1]
                scores[place] = max(scores.get(place, 0), float(p[i, 0] * p[j, 1]))
    best = sorted(scores.items(), key=lambda item: -item[1])[:7]
    assert [a.text for a in (answer, *more)] == [TEXT[a:b] for (a, b), _ in best]
    assert [a.score for a in (answer, *more)] == pytest.approx([p for _, p in best], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_in_the_text_letter_by_letter(kind):
    task = task_of(kind, 37)
    model = tiny_model(task)
    texts = [f"Who lives?\t{TEXT}", "Who?\tKo\u0308ln\tin 1848", ("a\tb", " Bonn "), "W\t🙂🙂"]
    together = task.answers(model, Request(texts, Sampling(), samples=3))
    for text, answers in zip([TEXT, "Ko\u0308ln\tin 1848", "Bonn", "🙂🙂"], together, strict=True):
        assert answers
        for answer in answers:
            assert answer.text
            assert answer.text in text
            assert answer.text == answer.text.strip()
    assert model.training
    alone = [task.answers(model, Request([text], Sampling(), samples=3))[0] for text in texts]
    assert [[a.text for a in answers] for answers in alone] == [
        [a.text for a in answers] for answers in together
    ]


# Data and all of it


def test_reading(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    config, data = SpanTaskConfig(name="span"), DataConfig(tokenizer="wordpiece", vocab=300)
    corpus = SpanTask.read(DataRequest([path], [], data, config, 41))
    assert (len(corpus.train), len(corpus.valid)) == (36, 4)
    assert not {text for _, text in corpus.train.sources} & {text for _, text in corpus.valid.sources}
    assert corpus.notes == []
    again = SpanTask.read(DataRequest([path], [path], data, config, 41, [corpus.tokenizer]))
    assert again.train.fingerprint() == again.valid.fingerprint() != corpus.train.fingerprint()
    gone = jsonl(tmp_path / "gone.jsonl", [("Who?", "Anna sings.", "Kim")])
    user_error(lambda: SpanTask.read(DataRequest([gone], [], data, config, 41)), "gone.jsonl:1", "Kim")
    user_error(lambda: SpanTask.read(DataRequest([path], [], data, config, 4)), "context=4")
    plain = train_tokenizer("char", [TEXT], 300, ["<unk>"])
    user_error(lambda: SpanTask(config, plain, 41), "[CLS]")
    with pytest.raises(ValueError, match="longest=0"):
        SpanTaskConfig(name="span", longest=0)


def test_it_learns_is_kept_and_scored(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"{text} {question}" for question, text, _ in ROWS))
    base = train("fill", str(tmp_path / "text.txt"), out=tmp_path / "fill", steps=2, set=SMALL)
    data = jsonl(tmp_path / "a.jsonl", ROWS)
    more = {"train.lr": 0.01, "train.warmup": 5}
    model = train("span", data, valid=data, out=tmp_path / "a", base=tmp_path / "fill", steps=60, set=more)
    assert model.tokenizer.digest == base.tokenizer.digest
    loaded = load(tmp_path / "a", "cpu")
    texts = [f"{question}\t{text}" for question, text, _ in ROWS]
    answers = model.ask(texts)
    assert answers == [loaded.ask(text) for text in texts]
    scores = loaded.score(data)
    assert set(scores) == {"loss", "accuracy", "spans", "exact", "f1"}
    assert scores["exact"] == scoring.exact_match(answers, [answer for *_, answer in ROWS]) > 0.9
    assert scores["f1"] == scoring.token_f1(answers, [answer for *_, answer in ROWS])
    long = "The sun is warm. " * 9 + "Anna lives in Köln. " + "The sun is warm. " * 9
    answer = loaded.answers(f"Who lives there?\t{long}")[0][0]
    assert answer.text in long
    assert 0 < answer.score <= 1
    assert len(loaded.ask("Who lives there?\tAnna lives", num_return_sequences=2)) == 2
    for wrong in ("Who lives?", "", "\tAnna", "Who?\t "):
        user_error(lambda wrong=wrong: loaded.ask(wrong), "question", "tab")


def test_from_scratch_and_no_gpt(tmp_path):
    data = jsonl(tmp_path / "a.jsonl", ROWS)
    settings = TINY | {"data.tokenizer": "bpe", "model.context": 61}
    model = train("span", data, valid=data, out=tmp_path / "a", steps=60, set=settings)
    assert model.score(data)["exact"] > 0.9
    no = {"model.kind": "gpt"}
    user_error(lambda: train("span", data, out=tmp_path / "b", steps=1, set=no), "gpt", "span", "bert")
    assert np.isfinite(model.score(data)["loss"])
