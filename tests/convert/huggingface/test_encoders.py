"""Longformer, ELECTRA, Megatron-BERT and next sentences: every class of transformers that we load and export.

Rows are <s> question </s> </s> text </s>, of unequal length and padded.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.folders import END, PAD, VOCAB, save_folder
from helpers.looking import reader
from regard import trace
from regard.models import Electra
from regard.runs.export import export
from regard.runs.load import load
from regard.runs.model import Model
from regard.training.build import train

ENDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
CLASSES = [("longformer", f"Longformer{end}") for end in ENDS] + [
    ("electra", f"Electra{end}") for end in ENDS
]
CLASSES += [("electra", "ElectraForPreTraining"), ("bert", "BertForNextSentencePrediction")]
CLASSES += [
    ("megatron_bert", f"MegatronBert{end}") for end in (*ENDS, "ForPreTraining", "ForNextSentencePrediction")
]
PAIR = "The cat sleeps", "A dog barks at last"


def rows() -> tuple[Tensor, Tensor]:
    """Questions of 4, 9 and 1 tokens with texts of 21, 7 and 2: ids and attention mask (3, 29)."""
    texts = []
    for question, text in (4, 21), (9, 7), (1, 2):
        a, b = (torch.randint(5, VOCAB, (n,)).tolist() for n in (question, text))
        texts.append([0, *a, END, END, *b, END])
    ids = torch.tensor([row + [PAD] * (29 - len(row)) for row in texts])
    return ids, ids != PAD


@torch.no_grad()
def their_outputs(theirs: Any, ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Logits or hidden states: of real tokens (N, ·), or of texts (B, ·)."""
    y = theirs(ids, attention_mask.long())
    if hasattr(y, "start_logits"):
        return torch.stack([y.start_logits, y.end_logits], dim=-1)[attention_mask]
    y = next(y[name] for name in ("logits", "prediction_logits", "last_hidden_state") if name in y)
    return y[attention_mask] if y.shape[:2] == ids.shape else y


@torch.no_grad()
def our_outputs(ours: Model, ids: Tensor, attention_mask: Tensor) -> Tensor:
    module: Any = ours.model.double()
    match ours.task.config.name:
        case "embed":
            y = module.encode(ids, attention_mask)
        case "span":
            y = module(ids, attention_mask, None, ours.task.globals(module, ids))
        case "fill" if isinstance(module, Electra):
            y = module.detect(module.model.encode(ids, attention_mask))
        case "fill" if not ours.task.config.words:
            y = module.next_sentence(module.encode(ids, attention_mask))
        case _:
            y = module(ids, attention_mask)
    return y[attention_mask] if y.shape[:2] == ids.shape else y


@pytest.mark.parametrize(("kind", "architecture"), CLASSES, ids=[name for _, name in CLASSES])
def test_every_class_there_and_back(tmp_path: Path, kind: str, architecture: str) -> None:
    theirs = save_folder(tmp_path / "theirs", kind, 0, architecture=architecture)
    inputs = rows()
    y = their_outputs(theirs.double(), *inputs)
    assert y.std() > 0.1
    ours = load(tmp_path / "theirs", "cpu")
    assert_close(our_outputs(ours, *inputs), y, atol=1e-5, rtol=1e-5)
    ours.model.float()
    export(ours, tmp_path / "ours")
    again, loading = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_close(their_outputs(again.eval().double(), *inputs), y, atol=1e-5, rtol=1e-5)
    assert load(tmp_path / "ours", "cpu").task.config == ours.task.config


# Next sentences


@torch.no_grad()
@pytest.mark.parametrize(("kind", "name"), [("bert", "Bert"), ("megatron_bert", "MegatronBert")])
@pytest.mark.parametrize("end", ["ForPreTraining", "ForNextSentencePrediction"])
def test_next_sentences_are_transformers(tmp_path: Path, end: str, kind: str, name: str) -> None:
    theirs = save_folder(tmp_path, kind, 1, architecture=f"{name}{end}", pad_token_id=0)
    model = load(tmp_path, "cpu")
    ids = [model.tokenizer.encode(text) for text in PAIR]
    row = [model.task.first, *ids[0], model.task.end, *ids[1], model.task.end]
    segments = [0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)
    y = theirs(torch.tensor([row]), token_type_ids=torch.tensor([segments]))
    (true,) = (y.seq_relationship_logits if end == "ForPreTraining" else y.logits).softmax(-1).tolist()
    longer = f"{PAIR[0]}\t{PAIR[1]} {PAIR[1]}"  # padding changes nothing
    (answers, _) = model.answers(["\t".join(PAIR), longer], num_return_sequences=2)
    scores = {answer.text: answer.score for answer in answers}
    assert scores == pytest.approx(dict(zip(("isNext", "notNext"), true, strict=True)), abs=1e-5)
    assert model.ask("\t".join(PAIR)) == max(scores, key=lambda name: scores[name])


def test_heads_that_a_folder_lacks(tmp_path: Path) -> None:
    for folder, kind, architecture in (
        ("next", "bert", "BertForNextSentencePrediction"),
        ("detects", "electra", "ElectraForPreTraining"),
        ("words", "bert", "BertForMaskedLM"),
    ):
        save_folder(tmp_path / folder, kind, 1, architecture=architecture)
    follows, detects, words = (load(tmp_path / name, "cpu") for name in ("next", "detects", "words"))
    user_error(lambda: follows.ask("The ___ sleeps"), "no head for masked words")
    user_error(lambda: detects.ask("The ___ sleeps"), "no head for masked words", "replaced")
    assert len(detects.ask("The cat sleeps").split(", ")) == len(detects.tokenizer.encode("The cat sleeps"))
    assert trace(detects, "The cat sleeps")["probabilities"].ndim == 1
    user_error(lambda: words.ask("\t".join(PAIR)), "next sentence")


# Our own


@torch.no_grad()
def test_an_electra_of_ours(tmp_path: Path) -> None:
    """The discriminator, and the generator in a folder inside."""
    model = reader("fill", "bert", task_replaced=True)
    export(model, tmp_path / "out")
    ids = torch.randint(5, model.tokenizer.vocab, (2, 7))
    module: Any = model.model
    theirs = hf.ElectraForPreTraining.from_pretrained(tmp_path / "out").eval()
    assert_close(theirs(ids).logits, module.detect(module.model.encode(ids)), atol=1e-5, rtol=1e-5)
    generator = hf.ElectraForMaskedLM.from_pretrained(tmp_path / "out/generator").eval()
    assert_close(generator(ids).logits, module(ids), atol=1e-5, rtol=1e-5)
    again = load(tmp_path / "out/generator", "cpu")
    assert again.ask("the [MASK] fox") == model.ask("the [MASK] fox")
    assert load(tmp_path / "out", "cpu").ask("the fox") == model.ask("the fox")


# Training from folders


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["longformer", "electra", "megatron_bert"])
@pytest.mark.parametrize("recipe", ["fill", "classify", "span"])
def test_fine_tuning_from_a_folder(tmp_path: Path, kind: str, recipe: str) -> None:
    save_folder(tmp_path / "base", kind, 0)
    more = {"task.separators": 2} if recipe == "span" else {}
    settings = {"train.steps": 2, "train.batch": 3, "train.evaluate": 9, "train.optimizer": "adamw"}
    model = train(recipe, base=tmp_path / "base", out=tmp_path / "run", set=settings | more)
    export(model, tmp_path / "out")
    end = {"fill": "ForMaskedLM", "classify": "ForSequenceClassification", "span": "ForQuestionAnswering"}
    theirs = (
        getattr(hf, f"{kind.title().replace('_', '')}{end[recipe]}").from_pretrained(tmp_path / "out").eval()
    )
    inputs = rows()
    if recipe == "span" or kind == "longformer":
        inputs = tuple(t[:2] for t in inputs)
    assert_close(our_outputs(model, *inputs), their_outputs(theirs.double(), *inputs), atol=1e-5, rtol=1e-5)


# Configurations


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("longformer", {"attention_window": 7}, ["attention_window", "even"]),
        ("longformer", {"attention_window": [8]}, ["attention_window has 1", "3 layers"]),
        ("longformer", {"attention_window": [8, 8, True]}, ["attention_window", "even"]),
        ("longformer", {"attention_window": [8, 8, -2]}, ["attention_window=-2"]),
        ("longformer", {"attention_window": {"a": 1}}, ["attention_window"]),
        ("longformer", {"attention_mode": "tvm"}, ["attention_mode=tvm"]),
        ("longformer", {"type_vocab_size": 2}, ["type_vocab_size=2"]),
        ("longformer", {"num_hidden_layers": 10**9, "attention_window": 8}, ["more layers"]),
        ("electra", {"embedding_size": 39}, ["embeddings", "39"]),
        ("electra", {"embedding_size": 0}, ["embedding_size=0"]),
        ("electra", {"embedding_size": "24"}, ["embedding_size", "number"]),
        ("electra", {"hidden_act": "relu"}, ["hidden_act=relu"]),
    ],
)
def test_settings_that_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: list[str]
) -> None:
    save_folder(tmp_path, kind, 0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    user_error(lambda: load(tmp_path, "cpu"), *words)
