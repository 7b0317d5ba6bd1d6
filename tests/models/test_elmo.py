"""ELMo: what each direction sees, the mixture of the layers, and the loss of both directions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.commands import stdout_of
from helpers.errors import user_error
from helpers.runs import unmeasured
from regard.data import Stream
from regard.models.elmo import Elmo, ElmoConfig, LayerMix
from regard.runs.load import load
from regard.tasks.fill import Fill, FillConfig, put_in
from regard.tasks.loss import IGNORED
from regard.tasks.masking import SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import word_tokenizer
from regard.training.build import train
from regard.viewer.context import compare_word

VOCAB, DIM, T = 43, 22, 7
TEXTS = [
    "he rowed the boat to the bank of the river and sat in the grass",
    "she took the money to the bank and the clerk put it in the safe",
    "the clerk of the bank counted the money and closed the safe",
    "the bank of the river was green and the boat lay in the grass",
]


def elmo(**more: object) -> Elmo:
    torch.manual_seed(0)
    return Elmo(ElmoConfig(**({"vocab": VOCAB, "context": 11, "dim": DIM, "dropout": 0.0} | more))).eval()  # type: ignore[arg-type]


def ids(rows: int = 5) -> Tensor:
    return torch.randint(VOCAB, (rows, T), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_token_is_predicted_without_being_read() -> None:
    model, text = elmo(), ids()
    for t in range(T):
        other = text.clone()
        other[:, t] = (text[:, t] + 1) % VOCAB
        changed = (model(text) != model(other)).any(-1).all(0)
        assert changed.tolist() == [n != t for n in range(T)]  # all others see it
        first, second = model.each_side(model.layers(text)[1]), model.each_side(model.layers(other)[1])
        ahead, behind = ((a != b).any(-1).all(0).tolist() for a, b in zip(first, second, strict=True))
        assert ahead == [n > t for n in range(T)]
        assert behind == [n < t for n in range(T)]


@torch.no_grad()
def test_the_layers_are_those_of_torch() -> None:
    model, text = elmo(), ids()
    weights = model.encoder.rnn.state_dict()
    x, states = model.layers(text)
    for way, part, flip in (
        ("", states[..., : DIM // 2], False),
        ("_reverse", states[..., DIM // 2 :], True),
    ):
        cell = nn.LSTM(DIM, DIM // 2, batch_first=True)
        cell.load_state_dict(
            {n.removesuffix("_reverse"): w for n, w in weights.items() if n.endswith("l0" + way)}
        )
        expected = cell(x.flip(1))[0].flip(1) if flip else cell(x)[0]
        assert_close(part, expected)
    assert_close(model(text), sum(map(model.logits, model.each_side(states))) - model.bias)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    model, text = elmo(), ids()
    mask = torch.arange(T + 3) < T
    padded = F.pad(text, (0, 3), value=5)
    for f in (model.forward, model.encode):
        assert_close(f(padded, mask.expand(5, -1))[:, :T], f(text))


@torch.no_grad()
def test_the_mixture_is_the_papers() -> None:
    """Peters et al. 2018, eq. 1."""
    mix, layers = LayerMix(3), torch.randn(3, 2, T, DIM)
    mix.w.copy_(torch.tensor([0.3, -1.0, 2.0]))
    mix.gamma.fill_(1.7)
    s = mix.w.exp() / mix.w.exp().sum()
    assert_close(mix(*layers), 1.7 * (s[0] * layers[0] + s[1] * layers[1] + s[2] * layers[2]))


def test_the_loss_is_that_of_both_directions() -> None:
    tokenizer = word_tokenizer(TEXTS, 200, SPECIALS)
    task = Fill(FillConfig(name="fill", next=False), tokenizer, 23)
    model = elmo(vocab=tokenizer.vocab, context=23)
    (batch,) = task.evaluation_batches(stream(tokenizer), 10**4)
    text, mask, _, _, places, words = batch
    text = put_in(text, places, words, words != IGNORED)
    log_p = [model.logits(side).log_softmax(-1) for side in model.each_side(model.layers(text, mask)[1])]
    expected = torch.zeros(())
    for b, row in enumerate(mask):  # the mean of each text, as often as it has words that count
        losses = [-p[b, t, text[b, t]] for p in log_p for t in row.nonzero()[:, 0].tolist()]
        expected = expected + torch.stack(losses).mean() * (words[b] != IGNORED).sum()
    assert len(set(mask.sum(1).tolist())) > 1
    assert_close(task.loss(model, *batch), expected)
    task.loss(model, *batch).backward()
    assert all(p.grad is not None for p in model.parameters())  # as several processes need it


def stream(tokenizer: Tokenizer) -> Stream:
    return Stream([np.array(tokenizer.encode(text)) for text in TEXTS], sum(map(len, TEXTS)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "text.txt").write_text("\n\n".join(TEXTS * 20) + "\n")
    settings = {
        "model.kind": "elmo",
        "model.preset": "tiny",
        "model.dim": 32,
        "model.context": 24,
        "train.device": "cpu",
    }
    settings |= {
        "data.tokenizer": "word",
        "train.batch": 16,
        "train.lr": 3e-2,
        "task.next": False,
        "train.warmup": 5,
        "model.dropout": 0.0,
    }
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        train("fill", str(folder / "text.txt"), out=folder / "run", steps=60, set=settings)
    return folder / "run"


def test_trained_asked_and_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(run, "cpu")
    assert isinstance(model.model, Elmo)
    assert model.ask("she took the [MASK] to the bank").startswith("money ")
    cosines = compare_word(model, "bank", TEXTS[2], TEXTS[3])
    assert cosines["embed"] == pytest.approx(1)
    assert cosines["states"] < 0.999
    assert cosines["states"] < cosines["mixed"] < 0.999
    lines = stdout_of(capsys, "look", run, TEXTS[2], TEXTS[3], "--word", "bank").splitlines()
    assert {line.split("\t")[1] for line in lines} == cosines.keys()
    trace = regard.trace(model, TEXTS[0])
    assert_close(trace["states"], model.model.layers(torch.tensor([trace.ids["text"]]))[1][0].detach())


def test_a_head_learns_the_mixture(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)
    rows = [f"{text}\t{'river' if 'river' in text else 'money'}" for text in TEXTS * 5]
    (tmp_path / "labels.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    settings = {"train.device": "cpu", "train.batch": 4, "train.lr": 1e-2}
    model = train(
        "classify", str(tmp_path / "labels.tsv"), out=tmp_path / "out", base=str(run), steps=20, set=settings
    )
    assert model.model.model.mix.w.abs().sum() > 0


def test_replaced_words_are_for_bert() -> None:
    user_error(lambda: Fill.check_model(FillConfig(name="fill", replaced=True), "elmo"), "replaced", "bert")
