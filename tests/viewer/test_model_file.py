"""The file that is the model: its answers and its numbers, from file:// in a browser, are the model's own."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.families import FAMILIES
from helpers.looking import TEXT, captioner, noise, reader, recording, spelled
from helpers.saved import HARD, open_saved, prompts
from helpers.slow import slow_after
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.models import Captioner
from regard.quantize.model import dequantize_model, quantize_model
from regard.runs.model import Model
from regard.tasks.answers import collect_tokens
from regard.tasks.converse import Converse, ConverseConfig
from regard.tasks.request import Request
from regard.text.chat_template import Template
from regard.tracing.intervene import rank_heads
from regard.viewer import head_corpus
from regard.viewer.head_corpus import measure_heads
from regard.viewer.model_file import MAX_BYTES, model_content, save_model
from regard.viewer.session import Session
from regard.viewer.talk import talk
from regard.vision.decoding import resize_image


def efficientnet():
    """With the weights that it begins with: what rounds differently stays small through so many layers."""
    model = captioner(encoder="efficientnet", size=32)
    model.model.encoder.load_state_dict(Captioner(model.model.config).encoder.state_dict())
    return model, noise(32)


QUESTION = "the fox\tthe quick brown fox jumps"
CHATML = """{%- if messages[0]['role'] != 'system' -%}<|system|>Be kind.
{% endif -%}{%- for message in messages -%}
<|{{ message.role }}|>
{{ message.content | trim if message.role == 'user' else message.content }}<|endoftext|>
{% endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


def converser(template=None):
    """A GPT that answers in a chat template, by default the plain one."""
    model = spelled()
    if template is not None:
        model.task.use_template(Template(template))
        return model, TEXT
    task = Converse(ConverseConfig(name="converse"), model.tokenizer, model.task.context)
    task.continue_from(model.task)
    return Model(model.model, task, model.generation), TEXT


MORE = {
    "converse": converser,
    "chatml": lambda: converser(CHATML),
    "efficientnet": efficientnet,
    "window-gpt": lambda: (reader("write", "gpt", sliding_window=3, tied=False), TEXT),
    "t5-restore": lambda: (reader("restore", "t5"), "the ___ fox"),
    "rotary": lambda: (reader("translate", "transformer", pre=True, positions="rotary", norm="rms"), TEXT),
    "blank": lambda: (reader("fill", "bert"), "the [MASK] fox"),
    "tag-pieces": lambda: (spelled("tag", "bert", labels=("O", "B-X", "I-X")), TEXT),
    "span-pieces": lambda: (spelled("span", "bert", longest=5), QUESTION),
    "span-none": lambda: (reader("span", "bert", task_unanswerable=True, task_separators=2), QUESTION),
    "embed-unit": lambda: (reader("embed", "bert", task_normalize=True, task_longest=7), TEXT),
    "sub-words": lambda: (spelled(), "the lazy fox springt"),
}
KINDS_OF_MODELS = FAMILIES | MORE
WRITERS = [
    *("gpt", "gpt2", "alibi", "relative", "waves", "qk-norm", "window-gpt", "rnn-writer", "lstm-writer"),
    *("transformer", "rotary", "geglu", "untied", "t5", "gru", "lstm", "plain", "rnn-both"),
    *("chatml", "converse", "swiglu", "qk-norm-learned", "gru-writer", "rnn", "gru-forward", "lstm-additive"),
]
FILLERS = ["blank", "bert", "window", "elmo", "narrow", "long-fill", "electra-blank"]
SENTENCES = ["next", "narrow-next", "elmo-next", "electra-next"]
DETECTORS = ["electra"]
FINDERS = ["span", "long-span", "elmo-span", "span-pieces", "span-none"]
READERS = [
    *("classes", "pair", "pair-mean", "score", "gpt-classes", "gru-classes", "lstm-classes", "rnn-classes"),
    *("lstm-mean", "long-classes", "elmo-classes", "tag", "tag-pieces", "lstm-tags", "elmo-tag"),
]
EMBEDDERS = ["embed", "embed-unit", "embed-first", "elmo-embed"]
HEARERS = ["hear", "hear-mean", "hear-waves"]
SEERS = ["vit", "vit-mean", "vit-waves", "captioner", "vit-captioner", "efficientnet"]  # the last is large
RESTORERS = ["t5-restore", "t5-geglu"]
TRACED = [
    *WRITERS,
    "sub-words",
    *RESTORERS,
    *FILLERS,
    *SENTENCES,
    *DETECTORS,
    *READERS,
    *EMBEDDERS,
    *FINDERS,
    *HEARERS,
    *SEERS,
]
NAMED = {
    "words": ["words"],
    "mask": ["hard"],
    "image": ["zoom"],
    "positions": ["vit-larger"],
}
REFUSED = {kind: word for word, kinds in NAMED.items() for kind in kinds}  # and the word that says why

# To trace, besides what a file opens with
OTHER_INPUTS = {"t5-restore": "a ___ dog", "t5-geglu": "a ___ dog", "elmo": "the ___ ___ dog"}
OTHER_INPUTS |= dict.fromkeys(FINDERS, "jumps fox\tover the Hund den, the dog springt -- ü")
OTHER_INPUTS |= {"electra-blank": "the ___ jumps over the fox"}
OTHER_INPUTS |= dict.fromkeys(SENTENCES, "jumps over the fox\tden Hund")

OPEN = """content => {
  globalThis.models ??= {};
  globalThis.models[content.kind] = new regard.constructor(content);
}"""
TRACE = """async ([kind, request]) => {
  const model = globalThis.models[kind];
  const manifest = await model.trace(request);
  const tensors = {};
  for (const name of Object.keys(manifest.tensors)) {
    const { shape, data } = await model.tensor(name);
    const bytes = new Uint8Array(Float32Array.from(data).buffer); // faster than a list of numbers
    let text = "";
    for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
    tensors[name] = { shape, data: btoa(text) };
  }
  return { manifest, tensors };
}"""
ASK = """async ([kind, inputs]) => {
  const answers = [];
  for (const input of inputs) answers.push(await globalThis.models[kind].ask({ input }));
  return answers;
}"""
REFUSE = "([kind, input]) => models[kind].ask({ input }).then(() => null, (error) => error.message)"
EFFECTS = """async (kind) => {
  const effects = [];
  const { signal } = new AbortController();
  for await (const effect of globalThis.models[kind].lines("effects", null, signal)) effects.push(effect);
  return effects;
}"""


def trace_there(page, kind, request):
    """The manifest and the tensors of a model's run in the page."""
    result = page.evaluate(TRACE, [kind, request])
    tensors = {
        name: torch.from_numpy(np.frombuffer(base64.b64decode(one["data"]), np.float32).copy()).reshape(
            one["shape"]
        )
        for name, one in result["tensors"].items()
    }
    return result["manifest"], tensors


@pytest.fixture(autouse=True, scope="module")
def few_texts_measure_heads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_corpus, "TEXTS", 1)
        patch.setattr(head_corpus, "REPEATS", 1)
        yield


def make(kind):
    torch.manual_seed(0)
    return KINDS_OF_MODELS[kind]()


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """A page from file:// with a model in it, to which others are added."""
    yield from open_saved(browser, make("gpt")[0], tmp_path_factory)  # seeded: `added` has the same one


@pytest.fixture(scope="module")
def added(opened):
    """The model of a kind, which the page has, too."""
    models = {}

    def add(kind) -> tuple[Model, object]:
        if kind not in models:
            models[kind] = make(kind)
            content = model_content(*models[kind])
            opened.evaluate(OPEN, json.loads(json.dumps(content)) | {"kind": kind})
        return models[kind]

    return add


def greedy_ids(model, inputs):
    """The tokens that the model writes, always the likeliest."""
    task = model.task
    sampling = Sampling(temperature=0, max_new_tokens=7)
    if task.has_source:
        return [
            task.write_target(model.model, task.source_prompt(model.model, text), sampling)[:-1]
            for text in inputs
        ]
    return collect_tokens(task.steps(model.model, Request(inputs, sampling)), len(inputs))


@pytest.mark.parametrize("kind", slow_after(9, [*WRITERS[::2], *WRITERS[1::2]]))
def test_writes_the_same_tokens(kind, opened, added):
    model, _ = added(kind)
    texts = prompts(40 if kind in ("gpt", "transformer", "gru") else 8)
    answers = opened.evaluate(ASK, [kind, texts])
    assert [answer["ids"] for answer in answers] == greedy_ids(model, texts)


@pytest.mark.parametrize("kind", [*FILLERS, *SENTENCES, *DETECTORS, *READERS, *RESTORERS])
def test_gives_the_same_answers(kind, opened, added):
    model, _ = added(kind)
    blank = "" if kind in (*READERS, *DETECTORS) else "___"
    texts = [text for text in prompts(25, blank) if len(text.split()) < 15]
    if kind in (*SENTENCES, "pair", "score"):
        texts = [] if kind in SENTENCES else texts
        texts += ["the fox\tthe lazy dog", "Den \t jumps over the ü"]
    answers = [answer["output"] for answer in opened.evaluate(ASK, [kind, texts])]
    assert answers == model.ask(texts)


def inputs_for(kind, model, count):
    """As many different inputs as a kind of model can be asked."""
    if kind in HEARERS:  # recordings of different lengths
        return [recording(frames, seed) for seed in range(count // 3 + 1) for frames in (8, 16, 24)][:count]
    if model.task.reads == "image":
        rng = np.random.default_rng(5)
        return list(torch.from_numpy(rng.integers(0, 256, (count, *model.task.image_shape), dtype=np.uint8)))
    if kind in FINDERS:
        return [f"{text[:30].strip()}\t{text}" for text in (*prompts(count - len(HARD[2:])), *HARD[2:])]
    if kind in SENTENCES:
        parts = [" ".join(text.split()[:6]) for text in prompts(2 * count)]
        return list(map("\t".join, zip(parts[::2], parts[1::2], strict=True)))
    if kind in (*WRITERS, "sub-words", *EMBEDDERS):
        return prompts(count)
    texts = prompts(4 * count, "" if kind in (*READERS, *DETECTORS) else "___")
    return [text for text in texts if len(text.split()) < 15][:count]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRACED)
def test_answers_100_prompts(kind, opened, added):
    model, _ = added(kind)
    inputs = inputs_for(kind, model, 100)
    assert len(inputs) == 100
    data = [
        {"shape": list(x.shape), "data": x.flatten().tolist()} if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
    answers = opened.evaluate(ASK, [kind, data])
    if model.task.generates:
        assert [answer["ids"] for answer in answers] == greedy_ids(model, inputs)
    elif model.task.embeds:
        vectors = torch.tensor([json.loads(answer["output"]) for answer in answers])
        torch.testing.assert_close(vectors, model.embed(inputs), atol=2e-6, rtol=1e-5)
    else:
        assert [answer["output"] for answer in answers] == model.ask(inputs)


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_gives_the_same_vectors(kind, opened, added):
    model, _ = added(kind)
    texts = prompts(9)
    answers = [json.loads(answer["output"]) for answer in opened.evaluate(ASK, [kind, texts])]
    torch.testing.assert_close(torch.tensor(answers), model.embed(texts), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["tag", "tag-pieces"])
def test_tags_all_words_of_a_long_text(kind, opened, added):
    """In several parts."""
    model, _ = added(kind)
    texts = [" ".join(prompts(6)), "Dr. Ruiz-Hart's 3.5 km (don't!) ü\u200b -- _x_ …", *HARD[2:]]
    answers = [answer["output"] for answer in opened.evaluate(ASK, [kind, texts])]
    assert answers == model.ask(texts)


@pytest.mark.parametrize("kind", FINDERS)
def test_finds_the_same_answers(kind, opened, added):
    """Also in texts that are read in several parts."""
    model, _ = added(kind)
    texts = inputs_for(kind, model, 12)
    texts.append(f"Fox?\t{' '.join(prompts(9))}")
    answers = [answer["output"] for answer in opened.evaluate(ASK, [kind, texts])]
    assert answers == model.ask(texts)
    assert len(set(answers)) > 2


@pytest.mark.parametrize("kind", slow_after(len(TRACED) - 1, TRACED))
def test_every_number_and_its_labels(kind, opened, added):
    model, input = added(kind)
    other = input if isinstance(input, torch.Tensor) else OTHER_INPUTS.get(kind, "jumps over the fox den")
    want = Session(model, other)
    manifest, tensors = trace_there(opened, kind, {"input": other} if isinstance(other, str) else {})
    known = want.manifest
    parts = "tokens", "ids", "words", "input", "exact", "unread", "context", "answer", "graph", "outputs"
    for part in parts:
        assert manifest[part] == json.loads(json.dumps(known[part])), part
    names = [name for name in known["tensors"] if name != "rollout"]
    assert {name: info for name, info in known["tensors"].items() if name in names} == manifest["tensors"]
    for part, layers in known["attentions"].items():
        for mine, its in zip(manifest["attentions"][part], layers, strict=True):
            near = {"kinds": [pytest.approx(one, abs=1e-5) for one in its["kinds"]]}
            near["bits"] = pytest.approx(its["bits"], abs=1e-5)
            near["patterns"] = {
                name: {
                    "weights": pytest.approx(one["weights"], abs=1e-5),
                    "chance": pytest.approx(one["chance"], abs=1e-5),
                    "rows": one["rows"],
                }
                for name, one in its["patterns"].items()
            }
            assert mine == its | near
    assert manifest["opening"] == known["opening"]
    heads = opened.evaluate("(kind) => models[kind].get('heads')", kind)
    assert heads == json.loads(json.dumps(measure_heads(model)))
    for name in names:
        have, trace = tensors[name], want.tensor(name).float()
        assert have.shape == trace.shape, name
        near = 1e-5 * (1 + trace[trace.isfinite()].abs().max())
        torch.testing.assert_close(have, trace, atol=float(near), rtol=0)


@pytest.mark.parametrize("kind", ["gpt", "transformer", "gru", "classes", "tag", "blank"])
def test_changes_and_their_effects(kind, opened, added):
    model, input = added(kind)
    session = Session(model, input)
    part = session.trace.attentions[-1]
    changes = [{"kind": "silence", "part": part, "head": 0}, {"kind": "hide", "token": 1}]
    row = {"kind": "weights", "part": part, "head": 0, "query": 1}
    changes += [row | {"to": "even"}, row | {"to": 0, "weight": 0.25}]
    opened.evaluate(TRACE, [kind, {}])
    script = "async ([kind, changes]) => models[kind].send('change', { changes })"
    for subset in (changes[:1], changes[1:2], changes[2:3], changes[3:], []):
        have, want = opened.evaluate(script, [kind, subset]), session.whatif.changed(subset)
        assert have["text"] == want["text"]
        assert have["kl"] == pytest.approx(want["kl"], abs=1e-5)
        assert have["patchable"] == want["patchable"]
        assert {one["id"]: one["after"] for one in have["top"]} == pytest.approx(
            {one["id"]: one["after"] for one in want["top"]}, abs=1e-5
        ) or have["row"] != want["row"]
    effects = opened.evaluate(EFFECTS, kind)
    want = {(effect.part, effect.head): effect for effect in rank_heads(model, input)}
    for effect in effects:
        its = want.pop((effect["part"], effect["head"]))
        assert [effect["kl"], effect["log_probability"]] == pytest.approx(
            [its.kl, its.log_probability], abs=1e-4
        )
    assert not want


@pytest.mark.parametrize("kind", ["gpt", "transformer", "blank"])
def test_lens_and_path(kind, opened, added):
    model, input = added(kind)
    session = Session(model, input)
    opened.evaluate(TRACE, [kind, {}])
    have, want = opened.evaluate("async (kind) => models[kind].lens(1)", kind), session.lens(1)
    assert have["final"] == want["final"]
    for mine, its in zip(have["layers"], want["layers"], strict=True):
        assert mine["p"] == pytest.approx(its["p"], abs=1e-5)
        assert (str(mine["layer"]), mine["rank"]) == (its["layer"], its["rank"])
    if "written" in session.trace.tokens:
        tree = opened.evaluate("async (kind) => models[kind].tree(1)", kind)
        steps = [[one["token"] for one in step if one["kept"]] for step in session.tree(1).steps]
        assert [[one["token"] for one in step if one["kept"]] for step in tree["steps"]] == steps
        assert tree["chosen"] == session.tree(1).chosen


@pytest.mark.parametrize("kind", ["gpt", "gpt2", "rotary", "t5", "vit"])
def test_which_part_said_this(kind, opened, added):
    model, input = added(kind)
    session = Session(model, input)
    assert session.unsplit is None
    opened.evaluate(TRACE, [kind, {}])
    rows = 1 if session.trace["logits"].ndim == 1 else len(session.trace["logits"])
    for row, token in ((0, 2), (rows - 1, 1)):
        have = opened.evaluate(
            "async ([kind, row, token]) => models[kind].attribution(row, token)", [kind, row, token]
        )
        want = session.attribution(row, token)
        values = {(one["name"], one["head"]): one["value"] for one in want["parts"]}
        assert {(one["name"], one["head"]): one["value"] for one in have["parts"]} == pytest.approx(
            values, abs=1e-4
        )
        assert have["logit"] == pytest.approx(want["logit"], abs=1e-4)
        assert {side: pytest.approx(each, abs=1e-4) for side, each in want["words"].items()} == have["words"]


@pytest.mark.parametrize("size", [(6, 6), (37, 23), (5, 3), (9, 40)])
def test_pictures_are_resized_as_pillow_does(size, opened, added):
    added("vit")
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (*size, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "png")
    picture = base64.b64encode(file.getvalue()).decode()
    _, tensors = trace_there(opened, "vit", {"picture": picture})
    assert tensors["pixels"].flatten().tolist() == resize_image(image, (3, 6, 6)).flatten().tolist()


def test_eight_bits_are_a_third_of_the_size(opened):
    model = reader("write", "gpt", dim=48, context=99)
    size = len(json.dumps(model_content(model)["model"]["weights"]))
    quantize_model(model.model, "int8")
    content = model_content(model)
    assert len(json.dumps(content["model"]["weights"])) < 0.4 * size
    opened.evaluate(OPEN, json.loads(json.dumps(content)) | {"kind": "int8"})
    _, tensors = trace_there(opened, "int8", {"input": TEXT})
    dequantize_model(model.model)  # the page rounds the weights alone, not what they are multiplied with
    want = Session(model, TEXT).trace["logits"]
    assert (tensors["logits"].reshape(want.shape) - want).abs().max() < 1e-4 * want.abs().max()


def test_every_family_runs_in_a_page_or_is_refused():
    assert not set(TRACED) & REFUSED.keys()
    assert KINDS_OF_MODELS.keys() == {*TRACED, *REFUSED}


@pytest.mark.parametrize(("kind", "word"), REFUSED.items())
def test_says_which_models_do_not_run_in_a_page(kind, word, tmp_path):
    model, input = make(kind)
    with pytest.raises(UserError, match=word) as refused:
        save_model(model, tmp_path / "model.html", input)
    assert "INPUT" in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("template", "word"),
    [("{{ messages|length }}", "word for word"), ("{{ messages[0].content }}", "word for word"),
     ("{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}", "same texts"),
     ("{% for m in messages %}{{ m.content|e }}{% endfor %}", "same texts")],
)  # fmt: skip
def test_chat_templates_that_are_no_frame(template, word):
    with pytest.raises(UserError, match=word):
        model_content(*converser(template))


def test_pairs_and_blanks_are_asked_for_apart(opened, added):
    """A file of a model of both does what its first input needs, and says so of the other."""
    for kind, text, what in (("blank", "the fox\tthe dog", "follows"), ("next", "the ___ fox", "tab")):
        added(kind)
        assert what in opened.evaluate(REFUSE, [kind, text])


def test_too_many_weights(monkeypatch):
    """A browser reads the data of a file as one text, of 2**29 - 24 characters at most."""
    model = reader("write", "gpt")
    monkeypatch.setattr("regard.viewer.model_file.MAX_BYTES", 18_000)
    with pytest.raises(UserError, match="--dtype int8"):
        model_content(model)
    quantize_model(model.model, "int8")
    assert model_content(model)
    monkeypatch.setattr("regard.viewer.model_file.MAX_BYTES", 100)
    with pytest.raises(UserError, match="smaller model"):
        model_content(model)
    assert 0.9 * 2**29 < MAX_BYTES * 4 / 3 < 2**29 - 10_000_000


def test_the_page_itself(opened, added):
    """What people do: another text by the address, a question, a silenced head."""
    model, _ = added("gpt")  # the model that the file was saved with
    address = opened.url.partition("#")[0]
    opened.goto(f"{address}#view=next&input=the+lazy+dog")
    opened.wait_for_selector("main section.next")
    text = opened.text_content("main")
    likeliest = int(Session(model, "the lazy dog").trace["logits"][-1].argmax())
    assert model.tokenizer.tokens([likeliest])[0] in text
    opened.goto(f"{address}#view=next&words=parts&input=the+lazy+dog")
    assert opened.wait_for_selector(".parts .tick").get_attribute("data-fits") == "true"
    opened.goto(f"{address}#view=talk")
    opened.wait_for_selector("#asked")
    opened.fill("#asked", "the quick fox")
    opened.click("#say")
    opened.wait_for_selector(".inside")
    assert model.ask("the quick fox", temperature=0) in opened.text_content(".said")
    change = json.dumps([{"kind": "silence", "part": "blocks.0.attn", "head": 1}])
    opened.goto(f"{address}#view=whatif&input=the+lazy+dog&changes={change}")
    opened.wait_for_selector("#moved")
    assert "nats apart" in opened.text_content("#moved")


TALK = """async ([kind, turns]) => {
  const events = [];
  const { signal } = new AbortController();
  for await (const one of models[kind].lines("talk", { turns }, signal)) events.push(one);
  return events;
}"""


@pytest.mark.parametrize("kind", ["gpt", "transformer", "t5", "classes", "converse", "chatml"])
def test_talks_token_by_token(kind, opened, added):
    model, _ = added(kind)
    turns = ["the fox", "jumps over", "the lazy\ndog"]
    events, want = opened.evaluate(TALK, [kind, turns]), list(talk(model, turns))
    ids = [event["id"] for event in want if "id" in event]
    assert events[0] == want[0]
    assert [event["id"] for event in events if "id" in event] == ids
    assert "".join(event.get("text", "") for event in events) == "".join(e.get("text", "") for e in want)
    if kind == "classes":
        return
    read = events[0].get("source", events[0].get("ids"))
    request = {"ids": read, "written": ids} if "source" in events[0] else {"ids": [*read, *ids[:2]]}
    manifest, _ = trace_there(opened, kind, request)
    exact = (read, ids) if "source" in events[0] else request["ids"]
    known = Session(model, exact).manifest
    for part in ("exact", "input", "ids", "tokens", "answer", "unread"):
        assert manifest[part] == known[part], part
