"""lm-eval's local-completions scores a multiple-choice task over HTTP as transformers does in the process."""

import json

import pytest

from helpers.schemas import untrained
from helpers.serving import serve_models
from regard.runs.export import export
from regard.serve.registry import ServerLimits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
TASK = """
task: toy
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
target_delimiter: " "
metric_list: [{metric: acc}]
"""
ROWS = [
    {"question": "the quick brown", "choices": ["fox", "name", "lazy jumps"], "label": 0},
    {"question": "the fox", "choices": ["jumps", "true false", "null"], "label": 0},
    {"question": "the", "choices": ["0123", "brown fox jumps", "a b c"], "label": 1},
]


def test_choices_have_the_log_likelihoods_of_transformers(tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    managers = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    model = untrained("bpe", template=None)
    export(model, tmp_path / "hf")
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "toy.yaml").write_text(TASK.replace("DATA", str(data)))
    tasks = managers.TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)

    def score(kind, arguments, **more):
        result = lm_eval.simple_evaluate(
            kind, model_args=arguments, tasks=["toy"], task_manager=tasks, log_samples=True, **more
        )
        return [[choice for (choice,) in sample["resps"]] for sample in result["samples"]["toy"]]

    expected = score("hf", f"pretrained={tmp_path / 'hf'},dtype=float32,device=cpu", batch_size=1)
    with serve_models({"writer": model}, ServerLimits(tokens=50), key="sesame") as server:
        url = f"{server.url}v1/completions"
        how = f"model=writer,base_url={url},tokenizer={tmp_path / 'hf'},tokenizer_backend=huggingface"
        answers = score("local-completions", f"{how},num_concurrent=1,max_retries=1", batch_size=2)
    for got, want in zip(answers, expected, strict=True):
        for (logprob, greedy), (wanted, wanted_greedy) in zip(got, want, strict=True):
            assert float(logprob) == pytest.approx(float(wanted), abs=1e-3)
            assert greedy == wanted_greedy
