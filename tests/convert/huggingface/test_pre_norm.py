"""BERTs of ours with norms before the layers, as the plan trains them: in transformers they are
Megatron-BERTs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from helpers.exports import train_tokens, trained_model
from helpers.folders import TEXT
from regard.convert.model_card import AUTO_CLASSES
from regard.runs.export import export
from regard.runs.load import load
from regard.training.build import train

LABELS = ["O", "B-PET", "I-PET"]
QUESTION, ANSWER = "A dog barks", "The cat sleeps on the sofa"
INPUTS = {
    "fill": "The cat [MASK] on the sofa",
    "classify": TEXT[0],
    "tag": TEXT[0],
    "span": f"{QUESTION}\t{ANSWER}",
    "embed": TEXT[0],
}
SECTIONS: dict[str, dict[str, Any]] = {"classify": {"labels": LABELS}, "tag": {"labels": LABELS}}
WORDPIECE, BPE = ("wordpiece", {}), ("bpe", {"segments": 0})  # BPE: after the layers, it would be a RoBERTa


@torch.no_grad()
@pytest.mark.parametrize(("tokenizer", "sizes"), [WORDPIECE, BPE], ids=["wordpiece", "bpe"])
@pytest.mark.parametrize("task", ["fill", "classify", "tag", "span"])
def test_logits_are_transformers(tmp_path: Path, task: str, tokenizer: str, sizes: dict[str, Any]) -> None:
    section = SECTIONS.get(task, {"next": False} if task == "fill" else {})
    tokens = train_tokens(tokenizer, task)
    ours = trained_model("bert", task, tokens, section, depth=3, pre=True, **sizes)
    export(ours, tmp_path / "out")
    auto_class, _ = AUTO_CLASSES[task]
    theirs, loading = getattr(hf, auto_class).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert isinstance(theirs, hf.MegatronBertPreTrainedModel)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    to_ids = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [INPUTS[task], TEXT[1]] if task != "span" else [(QUESTION, ANSWER), (TEXT[2], QUESTION)]
    batch = to_ids(texts, return_tensors="pt", padding=True)
    mask = batch["attention_mask"].bool()
    assert not mask.all()
    assert ("token_type_ids" in batch) == (tokenizer == "wordpiece")
    segments = batch.get("token_type_ids")
    assert segments is None or segments.any() == (task == "span")
    y = ours.model(batch["input_ids"], mask, segments)
    again = theirs.eval()(**batch)
    logits = torch.stack([again.start_logits, again.end_logits], dim=-1) if task == "span" else again.logits
    assert y.std() > 0.1
    if task != "classify":
        y, logits = y[mask], logits[mask]
    assert_close(y, logits, atol=1e-5, rtol=1e-5)
    card = (tmp_path / "out/README.md").read_text()
    assert all(word in card for word in (type(theirs).__name__, auto_class, "megatron-bert"))


@pytest.mark.parametrize("task", INPUTS)
def test_there_and_back(tmp_path: Path, task: str) -> None:
    section = SECTIONS.get(task, {"next": False} if task == "fill" else {})
    ours = trained_model("bert", task, train_tokens("wordpiece", task), section, depth=2, pre=True)
    export(ours, tmp_path / "out")
    again = load(tmp_path / "out", "cpu")
    assert again.model.config.pre
    assert again.task.config == ours.task.config
    if task == "embed":
        assert torch.equal(again.embed([INPUTS[task]]), ours.embed([INPUTS[task]]))
    else:
        assert again.answers([INPUTS[task]]) == ours.answers([INPUTS[task]])


@pytest.mark.usefixtures("quick")
def test_the_plan_for_own_text(tmp_path: Path) -> None:
    """Without a setting, own texts become a Megatron-BERT, and with replaced words an ELECTRA."""
    (tmp_path / "my.txt").write_text("\n".join(f"{text} {i}." for i in range(40) for text in TEXT[:3]))
    rows = [f"{text} {i}\t{('good', 'bad')[i % 2]}" for i in range(40) for text in TEXT[:3]]
    (tmp_path / "my.tsv").write_text("\n".join(["text\tlabel", *rows]))
    size = {"model.dim": 8, "model.depth": 1, "model.heads": 1, "train.steps": 2}
    model = train("fill", tmp_path / "my.txt", out=tmp_path / "fill", set=size)
    export(model, tmp_path / "words")
    hf.MegatronBertForMaskedLM.from_pretrained(tmp_path / "words")
    assert load(tmp_path / "words", "cpu").ask(INPUTS["fill"]) == model.ask(INPUTS["fill"])
    model = train("classify", tmp_path / "my.tsv", out=tmp_path / "mean", set=size)
    export(model, tmp_path / "classes")
    hf.MegatronBertModel.from_pretrained(tmp_path / "classes")
    assert load(tmp_path / "classes", "cpu").ask(TEXT[0]) == model.ask(TEXT[0])
    model = train("fill", tmp_path / "my.txt", out=tmp_path / "found", set=size | {"task.replaced": True})
    export(model, tmp_path / "electra")
    hf.ElectraForPreTraining.from_pretrained(tmp_path / "electra")
