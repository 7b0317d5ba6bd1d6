"""The head of a model card is what the hub reads: YAML with a task, a licence, a base model and results."""

import os
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from helpers.errors import user_error
from helpers.looking import reader
from regard.convert.model_card import PIPELINE_TAGS, CardFacts, front_matter, huggingface_card
from regard.errors import UserError
from regard.runs import export
from regard.runs.summary import RunSummary
from regard.tasks import TASKS

FACTS = CardFacts(
    name='odd: "name"',
    license="apache-2.0",
    base_model="openai-community/gpt2",
    data=["news: x.txt"],
    scores={"loss": 1.25, "f1": float("nan"), "accuracy": 0.5},
)


@pytest.mark.parametrize("library", ["transformers", "onnx", "ctranslate2"])
def test_head_is_what_the_hub_reads(library: str) -> None:
    text = front_matter("classify", library, FACTS)
    data = ModelCard(f"{text}\n\n# A model\n").data
    assert (data.library_name, data.license, data.base_model) == (library, "apache-2.0", FACTS.base_model)
    assert data.pipeline_tag == "text-classification"
    assert data.model_name == FACTS.name
    results = {r.metric_type: (r.metric_value, r.dataset_name) for r in data.eval_results or ()}
    assert results == {"loss": (1.25, "news: x.txt"), "accuracy": (0.5, "news: x.txt")}


def test_every_task_has_a_tag_of_the_hub() -> None:
    assert PIPELINE_TAGS.keys() == TASKS.keys() - {"words"}
    card = huggingface_card(
        "write", {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, CardFacts()
    )
    head = yaml.safe_load(card.split("---")[1])
    assert (head["license"], head["pipeline_tag"], "model-index" in head) == (
        "unknown",
        "text-generation",
        False,
    )


def test_facts_come_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reader("write", "gpt")
    assert export.card_facts(model, "out", None) == CardFacts(name="out")
    model.folder, base = tmp_path / "run", tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\ntags:\n- x\nlicense: mit\n---\n# Base\n")
    best = {"step": 3, "valid_loss": 2.0, "best": "loss"}
    for start, license, name in (("hf:a/b", None, "a/b"), (str(base), "mit", None)):
        run = RunSummary(folder=model.folder, base=start, best=best, files=["/x/train.txt"], valid=[])
        monkeypatch.setattr(export, "read_run", lambda _, run=run: run)
        model.folder.mkdir(exist_ok=True)
        (model.folder / "recipe.toml").touch()
        facts = export.card_facts(model, "out", None)
        assert (facts.license, facts.base_model) == (license, name)
        assert (facts.data, facts.scores) == (["train.txt"], {"loss": 2.0})
    assert export.card_facts(model, "out", "apache-2.0").license == "apache-2.0"
    with pytest.raises(UserError, match="apache-2"):
        export.card_facts(model, "out", "a\nb: c")


@pytest.mark.parametrize("name", ["recipe.toml", "log.jsonl"])
def test_facts_that_cannot_be_read_are_not_left_out(tmp_path: Path, name: str) -> None:
    model = reader("write", "gpt")
    model.folder = tmp_path
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name) if name == "log.jsonl" else (tmp_path / name).write_text("[[")
    user_error(lambda: export.card_facts(model, "out", None), tmp_path / name)
