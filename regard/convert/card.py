"""The README.md of an exported folder: what it is and how to use it elsewhere."""

from typing import Any

USES = {  # the class that loads a folder, and what is done with it
    "write": ("AutoModelForCausalLM", "generate"),
    "translate": ("AutoModelForSeq2SeqLM", "generate"),
    "chat": ("AutoModelForSeq2SeqLM", "generate"),
    "restore": ("AutoModelForSeq2SeqLM", "generate"),
    "fill": ("AutoModelForMaskedLM", "logits"),
    "classify": ("AutoModelForSequenceClassification", "logits"),
    "tag": ("AutoModelForTokenClassification", "logits"),
    "span": ("AutoModelForQuestionAnswering", "start_logits"),
    "see": ("AutoModelForImageClassification", "logits"),
}


def card(task: str, config: dict[str, Any]) -> str:
    made = config["architectures"][0]
    library = "sentence-transformers" if task == "embed" else "transformers"
    parts = [
        f"---\nlibrary_name: {library}\n---",
        f"# A {config['model_type']} made with Regard",
        f"Task: {task}. Class: `{made}`. The folder holds no code and no pickles.",
        "## Use",
        f"```python\n{example(task)}\n```",
    ]
    if task == "write":
        parts += ["## Serve", "```\nvllm serve .\n```"]
    if config["model_type"] == "marian":
        convert = "ct2-transformers-converter --model . --output_dir ct2 --quantization int8"
        parts += ["## Serve", f"With CTranslate2:\n```\n{convert}\n```"]
    parts += ["## Back in Regard", "```\nregard ask . INPUT\n```"]
    return "\n\n".join(parts) + "\n"


def example(task: str) -> str:
    if task == "embed":
        found = ["from sentence_transformers import SentenceTransformer", ""]
        return "\n".join([*found, 'SentenceTransformer(".").encode(["A text."])'])
    loads, gives = USES[task]
    if task == "see":
        lines = [
            "from PIL import Image",
            f"from transformers import AutoImageProcessor, {loads}",
            "",
            'processor = AutoImageProcessor.from_pretrained(".")',
            f'model = {loads}.from_pretrained(".")',
            'inputs = processor(Image.open("a.png").convert("RGB"), return_tensors="pt")',
        ]
    else:
        text = {"fill": "The fox [MASK] over the dog.", "restore": "The fox <extra_id_0> over the dog."}
        types = ", return_token_type_ids=False" if gives == "generate" else ""
        lines = [
            f"from transformers import AutoTokenizer, {loads}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            f'model = {loads}.from_pretrained(".")',
            f'inputs = tokenizer("{text.get(task, "A text.")}", return_tensors="pt"{types})',
        ]
    done = "tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)"
    return "\n".join([*lines, done if gives == "generate" else f"model(**inputs).{gives}"])
