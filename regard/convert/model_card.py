"""The README.md of an exported folder, which describes the model and its use in other programs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

AUTO_CLASSES = {  # transformers' class for a task, and its result
    **dict.fromkeys(("write", "converse"), ("AutoModelForCausalLM", "generate")),
    "translate": ("AutoModelForSeq2SeqLM", "generate"),
    "chat": ("AutoModelForSeq2SeqLM", "generate"),
    "restore": ("AutoModelForSeq2SeqLM", "generate"),
    "fill": ("AutoModelForMaskedLM", "logits"),
    "classify": ("AutoModelForSequenceClassification", "logits"),
    "tag": ("AutoModelForTokenClassification", "logits"),
    "span": ("AutoModelForQuestionAnswering", "start_logits"),
    "see": ("AutoModelForImageClassification", "logits"),
}


PIPELINE_TAGS = {  # the hub's name of a task
    "write": "text-generation",
    "chat": "text-generation",
    "converse": "text-generation",
    "translate": "translation",
    "restore": "text2text-generation",
    "fill": "fill-mask",
    "classify": "text-classification",
    "tag": "token-classification",
    "span": "question-answering",
    "see": "image-classification",
    "hear": "audio-classification",
    "caption": "image-to-text",
    "embed": "sentence-similarity",
}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The origin and the scores of a model, for the head of its card."""

    name: str = "model"
    license: str | None = None  # an identifier of the hub, such as apache-2.0
    base_model: str | None = None  # a name of the hub
    data: Sequence[str] = ()  # files that it was scored on
    scores: Mapping[str, float] = field(default_factory=dict)


def front_matter(task: str, library: str, facts: CardFacts) -> str:
    """The head of a model card, which the hub reads: YAML with strings as in JSON."""
    lines = [f"library_name: {library}", f"license: {facts.license or 'unknown'}"]
    tag = PIPELINE_TAGS.get(task)
    lines += [f"pipeline_tag: {tag}"] if tag else []
    lines += [f"base_model: {json.dumps(facts.base_model)}"] if facts.base_model else []
    lines += ["tags:", "- regard", f"- {task}"]
    scores = {name: value for name, value in facts.scores.items() if is_figure(value)}
    if scores and tag:
        data = json.dumps(", ".join(facts.data) or "validation data", ensure_ascii=False)
        lines += ["model-index:", f"- name: {json.dumps(facts.name)}", "  results:"]
        lines += [
            "  - task:",
            f"      type: {tag}",
            "    dataset:",
            f"      name: {data}",
            "      type: custom",
        ]
        lines.append("    metrics:")
        for name, value in scores.items():
            lines += [f"    - type: {json.dumps(name)}", f"      value: {value}"]
    return "\n".join(["---", *lines, "---"])


def is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Hugging Face


def huggingface_card(task: str, config: dict[str, Any], facts: CardFacts, mean: bool = False) -> str:
    """`mean`: the head reads the mean of all tokens, as in sentence-transformers."""
    library = "sentence-transformers" if task == "embed" or mean else "transformers"
    parts = [
        front_matter(task, library, facts),
        f"# A {config['model_type']} made with Regard",
        f"Task: {task}. Class: `{config['architectures'][0]}`. The folder holds no code and no pickles.",
        "## Use",
        f"```python\n{mean_example() if mean else transformers_example(task)}\n```",
    ]
    if task in AUTO_CLASSES and AUTO_CLASSES[task][1] == "generate":
        parts += ["## Serve", *serving_programs(task)]
    parts += ["## Back in Regard", "```\nregard ask . INPUT\n```"]
    return "\n\n".join(parts) + "\n"


def serving_programs(task: str) -> list[str]:
    """Programs that serve such a model."""
    convert = "ct2-transformers-converter --model . --output_dir ct2 --quantization int8"
    own = "or, from the run itself, `regard export RUN ct2 --to ctranslate2`"
    ctranslate2 = f"With CTranslate2:\n```\n{convert}\n```\n{own}."
    if task not in ("write", "converse"):
        return [ctranslate2]
    lines = ["python convert_hf_to_gguf.py . --outfile model.gguf", "llama-server -m model.gguf"]
    note = (
        "It supports the tokenizers of well-known models only: use it for models trained further from these."
    )
    llamacpp = "With llama.cpp:\n```\n" + "\n".join(lines) + f"\n```\n{note}"
    return ["With vLLM:\n```\nvllm serve .\n```", ctranslate2, llamacpp]


def mean_example() -> str:
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "from transformers import AutoConfig",
        "",
    ]
    lines += ['logits = SentenceTransformer(".").encode(["A text."])[0]']
    return "\n".join([*lines, 'AutoConfig.from_pretrained(".").id2label[int(logits.argmax())]'])


def transformers_example(task: str) -> str:
    if task == "embed":
        lines = ["from sentence_transformers import SentenceTransformer", ""]
        return "\n".join([*lines, 'SentenceTransformer(".").encode(["A text."])'])
    auto_class, result = AUTO_CLASSES[task]
    if task == "see":
        lines = [
            "from PIL import Image",
            f"from transformers import AutoImageProcessor, {auto_class}",
            "",
            'processor = AutoImageProcessor.from_pretrained(".")',
            f'model = {auto_class}.from_pretrained(".")',
            'inputs = processor(Image.open("a.png").convert("RGB"), return_tensors="pt")',
        ]
    else:
        texts = {"fill": "The fox [MASK] over the dog.", "restore": "The fox <extra_id_0> over the dog."}
        types = ", return_token_type_ids=False" if result == "generate" else ""
        lines = [
            f"from transformers import AutoTokenizer, {auto_class}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            f'model = {auto_class}.from_pretrained(".")',
            f'inputs = tokenizer("{texts.get(task, "A text.")}", return_tensors="pt"{types})',
        ]
    generate = "tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)"
    return "\n".join([*lines, generate if result == "generate" else f"model(**inputs).{result}"])


def adapter_card(task: str, base: str, facts: CardFacts) -> str:
    """`base` is the name or the folder of the model that the adapter was trained on."""
    lines = [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base, ensure_ascii=False)})",
        'model = PeftModel.from_pretrained(base, ".")',
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        'inputs = tokenizer("A text.", return_tensors="pt", return_token_type_ids=False)',
        "tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)",
    ]
    note = "Back in Regard, with the same base model: `regard ask BASE INPUT --adapter .`"
    return front_matter(task, "peft", facts) + "\n\n" + card(task, "An adapter", lines, note)


# Regard


def small_card(task: str, dtype: str, facts: CardFacts) -> str:
    """Of a folder with weights in fewer bits, which other programs don't read."""
    example = {"see": "a.png", "caption": "a.png", "hear": "a.wav"} | {
        "fill": "The fox ___ over the dog.",
        "restore": "The fox ___ over the dog.",
        "span": "Who sleeps?\\tThe fox sleeps.",
    }
    lines = ["import regard", "", 'model = regard.load(".")']
    lines.append(f'model.ask("{example.get(task, "A text.")}")')
    note = f"Weights of layers are in {dtype}, which only Regard reads. In a shell: `regard ask . INPUT`"
    return front_matter(task, "regard", facts) + "\n\n" + card(task, "A model in fewer bits", lines, note)


# CTranslate2


def ctranslate2_card(task: str, layout: str, two_tokenizers: bool, context: int, facts: CardFacts) -> str:
    """`layout` is encoder-decoder, decoder or encoder."""
    lines = ["import ctranslate2", "import tokenizers", "", *load_tokenizers(two_tokenizers)]
    target = target_name(two_tokenizers)
    note = f"Texts have at most {context} tokens."
    if layout == "encoder-decoder":
        lines += [
            'model = ctranslate2.Translator(".", compute_type="auto")  # or int8, float16 ...',
            'tokens = tokenizer.encode("A text.").tokens',
            "options = {'beam_size': 4, 'patience': 4, 'min_decoding_length': 0}",
            f"options['max_decoding_length'] = {context}",
            "result = model.translate_batch([tokens], **options)[0].hypotheses[0]",
            f"{target}.decode([{target}.token_to_id(token) for token in result])",
        ]
        note = (
            "Greedily (`beam_size` 1) it writes what Regard writes. Its beam search stops as soon as "
            "`beam_size` texts have ended, Regard's when no other can win: a `patience` as large as "
            "`beam_size` comes near. "
            f"`length_penalty` is the same. Sources have at most {context} tokens."
        )
    elif layout == "decoder":
        lines += [
            'model = ctranslate2.Generator(".", compute_type="auto")  # or int8, float16 ...',
            'tokens = tokenizer.encode("Once upon a time").tokens',
            "options = {'max_length': 50, 'sampling_topk': 40, 'include_prompt_in_result': False}",
            "tokenizer.decode(model.generate_batch([tokens], **options)[0].sequences_ids[0])",
        ]
    else:
        lines += [
            'model = ctranslate2.Encoder(".", compute_type="auto")  # or int8, float16 ...',
            'output = model.forward_batch([tokenizer.encode("A text.").tokens])',
            "output.last_hidden_state  # a vector for each token; pooler_output is one for the text",
        ]
        if task != "embed":
            lines.append(
                "# head.safetensors has the weight and the bias that turn these into logits of classes"
            )
    return front_matter(task, "ctranslate2", facts) + "\n\n" + card(task, "CTranslate2's model", lines, note)


# ONNX


SPECTROGRAM_LINES = [
    "pixels = spectrogram[None]  # bytes (1, mels, frames), as regard.audio.mel.spectrogram makes them",
    "missing = model.get_inputs()[0].shape[3] - pixels.shape[3]",
    'inputs = {"pixels": np.pad(pixels, ((0, 0), (0, 0), (0, 0), (0, missing)))}',
]
SPECTROGRAM_NOTE = (
    "`pixels` are log-mel spectrograms, the highest band first, padded with 0 on the right. They come from "
    "samples at 16 kHz from -1 to 1, with 200 zeros before and after: Hann windows of 400 samples every 160; "
    "|FFT|²; mel bands as librosa's; x = log10 of that, at least -10; x = 1 + (x - m) / 8, at least 0, where "
    "m is the largest x, at least -2; bytes 1 + 254 x."
)


def onnx_card(
    task: str,
    graphs: dict[str, Any],
    *,
    two_tokenizers: bool,
    labels: Sequence[str],
    tokens: dict[str, int],
    context: int,
    facts: CardFacts,
) -> str:
    """`tokens`: the ids that begin and end a generated text."""
    only_images = "decoder_model" not in graphs and "pixels" in graphs["model"]["inputs"]
    lines = ["import numpy as np", "import onnxruntime"]
    lines += [""] if only_images else ["import tokenizers", "", *load_tokenizers(two_tokenizers)]
    if "decoder_model" not in graphs:
        inputs, (output, *_) = graphs["model"]["inputs"], graphs["model"]["outputs"]
        lines += ['model = onnxruntime.InferenceSession("model.onnx")']
        lines += SPECTROGRAM_LINES if task == "hear" else example_inputs(inputs)
        lines += [f'result = model.run(["{output}"], inputs)[0]']
    else:
        lines += greedy_decoding(graphs["encoder_model"], graphs["decoder_model"], tokens, context)
        lines.append(f"{target_name(two_tokenizers)}.decode(target)")
    notes = [f"Classes, in the order of the logits: {', '.join(labels)}."] if labels else []
    if task == "hear":
        notes.append(SPECTROGRAM_NOTE)
    if task in ("write", "converse"):
        notes.append(
            "`logits[:, t]` predicts token t + 1. Pad several texts on the right: no token attends to it."
        )
        if "state" in graphs["model"]["inputs"]:
            notes.append("To go on from there, pass `next_state` as `state` with the next tokens only.")
    elif any("attention_mask" in graph["inputs"] for graph in graphs.values()):
        notes.append("`attention_mask` is 1 for tokens of the text, and 0 for padding, on the right.")
    return front_matter(task, "onnx", facts) + "\n\n" + card(task, "ONNX graphs", lines, " ".join(notes))


def greedy_decoding(
    encoder: dict[str, Any], decoder: dict[str, Any], tokens: dict[str, int], context: int
) -> list[str]:
    values = {"encoder_hidden_states": "memory", "state": "state[0]"}
    values["encoder_attention_mask"] = 'inputs["attention_mask"]'
    target = "target[-1:]" if "state" in decoder["inputs"] else "target"
    step = [f'"input_ids": np.array([{target}])']
    step += [f'"{name}": {values[name]}' for name in decoder["inputs"] if name != "input_ids"]
    return [
        *(f'{name} = onnxruntime.InferenceSession("{name}_model.onnx")' for name in ("encoder", "decoder")),
        *example_inputs(encoder["inputs"]),
        "memory, *state = encoder.run(None, inputs)",
        f"target = [{tokens['decoder_start_token_id']}]",
        f"for _ in range({context}):",
        f"    step = {{{', '.join(step)}}}",
        "    logits, *state = decoder.run(None, step)",
        "    target.append(int(logits[0, -1].argmax()))",
        f"    if target[-1] == {tokens['eos_token_id']}:",
        "        break",
    ]


def example_inputs(names: list[str]) -> list[str]:
    """Lines that define one row of a graph's inputs."""
    if "pixels" in names:
        return ['inputs = {"pixels": pixels}  # bytes (1, channels, size, size) of an image of this size']
    values = {"input_ids": "ids", "attention_mask": "np.ones_like(ids)"}
    values["token_type_ids"] = "np.zeros_like(ids)"
    values["state"] = "np.zeros((layers, 1, dim), np.float32)"
    row = ", ".join(f'"{name}": {value}' for name, value in values.items() if name in names)
    ids_line = 'ids = np.array([tokenizer.encode("A text.").ids])'
    layers = ["layers, _, dim = model.get_inputs()[1].shape"] if "state" in names else []
    return [ids_line, *layers, f"inputs = {{{row}}}"]


# Shared


def load_tokenizers(two: bool) -> list[str]:
    files = {"tokenizer": "tokenizer.json"} | ({"target_tokenizer": "target_tokenizer.json"} if two else {})
    return [f'{name} = tokenizers.Tokenizer.from_file("{file}")' for name, file in files.items()]


def target_name(two: bool) -> str:
    return "target_tokenizer" if two else "tokenizer"


def card(task: str, title: str, lines: list[str], note: str) -> str:
    parts = [f"# {title} made with Regard", f"Task: {task}. The folder holds no code and no pickles."]
    parts += ["## Use", "```python\n" + "\n".join(lines) + "\n```", *([note] if note else [])]
    return "\n\n".join(parts) + "\n"
