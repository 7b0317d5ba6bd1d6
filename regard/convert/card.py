"""The README.md of an exported folder: what it is and how to use it elsewhere."""

from collections.abc import Sequence
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
    if task in ("write", "translate", "chat", "restore"):
        parts += ["## Serve", *serving(task, config["model_type"])]
    parts += ["## Back in Regard", "```\nregard ask . INPUT\n```"]
    return "\n\n".join(parts) + "\n"


def serving(task: str, kind: str) -> list[str]:
    """With programs that are made for it, where they know such a model."""
    found = []
    if task == "write":
        found.append("With vLLM:\n```\nvllm serve .\n```")
    convert = "ct2-transformers-converter --model . --output_dir ct2 --quantization int8"
    ours = "or, from the run itself, `regard export RUN ct2 --to ctranslate2`"
    found.append(f"With CTranslate2:\n```\n{convert}\n```\n{ours}.")
    if task == "write":
        lines = ["python convert_hf_to_gguf.py . --outfile model.gguf", "llama-server -m model.gguf"]
        known = "It knows the tokenizers of well-known models only: for models trained further from such."
        found.append("With llama.cpp:\n```\n" + "\n".join(lines) + f"\n```\n{known}")
    return found


def ctranslate2_card(task: str, both: bool, two: bool, context: int) -> str:
    """`both`: a source is read, a target written; `two`: either has a tokenizer of its own."""
    lines = ["import ctranslate2", "import tokenizers", "", *spelling(two)]
    if both:
        lines += [
            'model = ctranslate2.Translator(".", compute_type="auto")  # or int8, float16 ...',
            'tokens = tokenizer.encode("A text.").tokens',
            "options = {'beam_size': 4, 'patience': 4, 'min_decoding_length': 0}",
            f"options['max_decoding_length'] = {context}",
            "found = model.translate_batch([tokens], **options)[0].hypotheses[0]",
            f"{writer(two)}.decode([{writer(two)}.token_to_id(token) for token in found])",
        ]
    elif task == "write":
        lines += [
            'model = ctranslate2.Generator(".", compute_type="auto")  # or int8, float16 ...',
            'tokens = tokenizer.encode("Once upon a time").tokens',
            "options = {'max_length': 50, 'sampling_topk': 40, 'include_prompt_in_result': False}",
            "tokenizer.decode(model.generate_batch([tokens], **options)[0].sequences_ids[0])",
        ]
    else:
        lines += [
            'model = ctranslate2.Encoder(".", compute_type="auto")  # or int8, float16 ...',
            'found = model.forward_batch([tokenizer.encode("A text.").tokens])',
            "found.last_hidden_state  # a vector for each token; pooler_output is one for the text",
        ]
        if task != "embed":
            lines.append("# head.safetensors has the weight and the bias that make classes of these")
    notes = {
        True: "Greedily (`beam_size` 1) it writes what Regard writes. Its beams stop as soon as `beam_size` "
        "texts have ended, Regard's when none can win any more: a `patience` as large as `beam_size` comes "
        "near. "
        f"`length_penalty` is the same. Sources have at most {context} tokens.",
        False: f"Texts have at most {context} tokens.",
    }
    return page(task, "CTranslate2's model", lines, notes[both])


def onnx_card(
    task: str, graphs: dict[str, Any], two: bool, labels: Sequence[str], ids: dict[str, int], context: int
) -> str:
    """`ids`: the tokens that begin and end what is written."""
    lines = ["import numpy as np", "import onnxruntime"]
    lines += (
        []
        if "pixels" in next(iter(graphs.values()))["inputs"] and "decoder" not in graphs
        else ["import tokenizers"]
    )
    lines += ["", *(spelling(two) if "import tokenizers" in lines else [])]
    if "decoder" not in graphs:
        inputs, (output, *_) = graphs["model"]["inputs"], graphs["model"]["outputs"]
        lines += ['model = onnxruntime.InferenceSession("model.onnx")', *given(inputs, "ids")]
        lines += [f'found = model.run(["{output}"], inputs)[0]']
    else:
        reads, writes = graphs["encoder"], graphs["decoder"]
        lines += [f'{name} = onnxruntime.InferenceSession("{name}.onnx")' for name in ("encoder", "decoder")]
        lines += [*given(reads["inputs"], "source"), "memory, *state = encoder.run(None, inputs)"]
        lines += [f"target = [{ids['decoder_start_token_id']}]", f"for _ in range({context}):"]
        more = {"memory": "memory", "mask": 'inputs["mask"]', "state": "state[0]"}
        last = "target[-1:]" if "state" in writes["inputs"] else "target"
        told = [f'"{name}": {more[name]}' for name in writes["inputs"] if name != "target"]
        told.insert(0, f'"target": np.array([{last}])')
        lines.append(f"    given = {{{', '.join(told)}}}")
        lines.append("    logits, *state = decoder.run(None, given)")
        lines.append("    target.append(int(logits[0, -1].argmax()))")
        lines.append(f"    if target[-1] == {ids['eos_token_id']}:")
        lines.append("        break")
        lines.append(f"{writer(two)}.decode(target)")
    notes = [f"Classes, in the order of the logits: {', '.join(labels)}."] if labels else []
    if task == "write":
        notes.append(
            "`logits[:, t]` tells of token t + 1. Pad several texts on the right: no token sees that."
        )
    elif any("mask" in graph["inputs"] for graph in graphs.values()):
        notes.append("`mask` is true where a text is, and false where it is padded, on the right.")
    return page(task, "ONNX graphs", lines, " ".join(notes))


def given(inputs: list[str], name: str) -> list[str]:
    """One row of what a graph reads."""
    if "pixels" in inputs:
        return ['inputs = {"pixels": pixels}  # bytes (1, channels, size, size) of a picture of this size']
    found = [f'"{name}": ids', '"mask": np.ones_like(ids, bool)', '"segments": np.zeros_like(ids)']
    kept = [line for line in found if line.split('"')[1] in inputs]
    return ['ids = np.array([tokenizer.encode("A text.").ids])', f"inputs = {{{', '.join(kept)}}}"]


def spelling(two: bool) -> list[str]:
    names = {"tokenizer": "tokenizer.json"} | ({"writer": "target_tokenizer.json"} if two else {})
    return [f'{name} = tokenizers.Tokenizer.from_file("{file}")' for name, file in names.items()]


def writer(two: bool) -> str:
    return "writer" if two else "tokenizer"


def page(task: str, what: str, lines: list[str], notes: str) -> str:
    parts = [f"# {what} made with Regard", f"Task: {task}. The folder holds no code and no pickles."]
    parts += ["## Use", "```python\n" + "\n".join(lines) + "\n```", *([notes] if notes else [])]
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
