"""Chat templates: the same texts as transformers', within limits of memory and time."""

import json
import resource
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import regard
from helpers.errors import user_error
from regard.text import chat_template as template
from regard.text.chat_template import Template

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message['content'] | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") ~ "!" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nIt is " + date_string + "\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- message.tool_calls | tojson(indent=2) }}{{ message.tool_calls[0].arguments | tojson }}
    {%- endif %}
{%- endfor %}
{% if tools is not none %}never{% endif %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""
MISTRAL = """{%- set ns = namespace(index=0, found=false) -%}
{{ bos_token }}{% for message in messages if message.role != 'system' %}
    {% if (message['role'] == 'user') != (ns.index % 2 == 0) %}
        {{ raise_exception('Roles must alternate: user, assistant, user') }}
    {% endif %}
    {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
    {% endif %}{% set ns.index = ns.index + 1 %}
{% endfor %}
{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n > 2 %}{% break %}{% endif %}{{ n }}
{% endfor %}"""
MACROS = """{%- macro said(m, last=false) -%}
{{ m.role|upper }}: {{ m.content.split('</think>')[-1].lstrip('\n') }}
{%- endmacro -%}
{%- for m in messages[::-1] %}
{% set i = (messages|length - 1) - loop.index0 %}{{ i }} {{ said(m, loop.last) }}
{% endfor %}{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}
{% set words = ['a', 'b'] + ['c'] %}{{ words }}
{{ words|join('-') ~ words|length ~ (1, 2)[0] ~ {'k': [1, none]} }}
{% set text %}{{ words[0] * 3 }}{% endset %}{{ text }}
{{ 7 // 2 }}{{ 2 ** 5 }}{{ nothing }}{{ none }}{{ true }}
{% for k, v in messages[0].items() %}{{ k }}={{ v|replace('i', 'ii')|indent(2) }};{% endfor %}
{{ messages[0].content.replace('H', 'J') }}{{ ', '.join(words) }}{{ 'x' in words }}{{ words is iterable }}"""
TALK = [
    {"role": "system", "content": " Be kind. "},
    {"role": "user", "content": "Hi \n there <&>"},
    {"role": "assistant", "content": "<think>so</think>\n\nGrüße 🗼 "},
    {"role": "user", "content": "Why?"},
]


def peer(text: str) -> object:
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer(models.BPE())
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", chat_template=text
    )


@pytest.mark.parametrize("text", [CHATML, SMOL, LLAMA3, MISTRAL, MACROS])
def test_as_transformers(text):
    theirs, ours = peer(text), Template(text, {"bos_token": "<s>", "eos_token": "</s>"})
    called = [*TALK[:2], {"role": "assistant", "content": "", "tool_calls": [{"arguments": {"é": "<1>"}}]}]
    for talk in (TALK, TALK[1:], TALK[1:2], called):
        for prompt in (True, False):
            want = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=prompt)
            assert ours.render(talk, prompt) == want
    assert len(set(map(len, [ours.render(TALK), ours.render(TALK[1:2])]))) == 2


def test_mistakes():
    user_error(lambda: Template("a\n{% if x %}", where="a.gguf"), "a.gguf:2", "not a chat template")
    user_error(lambda: Template("{{ x | nosuch }}", where="w"), "w:1", "nosuch")
    user_error(lambda: Template("x" * 2**21, where="w"), "w", "characters")
    user_error(
        lambda: Template("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", where="w"), "w", "not a chat template"
    )
    odd = [{"role": "assistant", "content": "a"}]
    refused = Template(MISTRAL, {"bos_token": ""}, "w")
    user_error(lambda: refused.render(odd), "w", "refuses this conversation: Roles must alternate")
    for text in ("{{ messages[9].content + 'a' }}", "{{ 1 // 0 }}", "{{ 'a' + 1 }}", "{% include 'a' %}"):
        user_error(lambda text=text: Template(text, where="w").render(odd), "w", "fails")


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ns.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ (messages|map(attribute='__class__')|first).__name__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__}'.format(1) }}",
    ],
)
def test_nothing_of_python_is_reached(text):
    """Jinja's sandbox gives an empty string, or an error."""
    try:
        said = Template(text).render(TALK)
    except regard.UserError:
        return
    assert said == ""


NESTED = "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
GROW = "{% set ns = namespace(x=A) %}{% for i in range(60) %}{% set ns.x = B %}{% endfor %}{{ ns.x }}"
KEEP = "{% set ns = namespace(l=[]) %}{% set s = 'x' * 1000000 %}{% for i in range(9999) %}"
MEMORY = [
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * ['a'] }}",
    "{{ (1).to_bytes(4000000000,'big') }}",
    "{{ 'x'.encode().ljust(6000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'a'|center(1000000000) }}",
]
TIME = [
    "{{ 9 ** (9 ** 9) }}",
    "{% set l = ['x'] * 9999 %}{{ range(99999)|select('in', l)|list }}",
    GROW.replace("A", "7").replace("B", "ns.x * ns.x"),
    "{% set r = range(99999) %}" + NESTED,
    "{% set r = range(99999) %}{% for a in r %}{% for b in r if false %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{% set a = m(n - 1) + m(n - 1) %}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ lipsum(n=1000000) }}",
]
EITHER = [  # as fast as the machine is
    GROW.replace("A", "{}").replace("B", "{1: ns.x, 2: ns.x}"),
    "{{ [['a' * 100000] * 100000] }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ range(90000)|join('b' * 100000) }}",
    "{{ range(90000)|list|tojson(indent=100000) }}",
    "{{ range(90000)|list|tojson(separators=('b' * 100000, ':')) }}",
    "{% for a in range(99999) %}" + "y" * 100000 + "{% endfor %}",
    "{{ (['x' * 4000000] * 2000)|sort }}",
    KEEP + "{% set ns.l = [s[i:], ns.l] %}{% endfor %}",
    GROW.replace("A", "'ab'").replace("B", "ns.x ~ ns.x"),
    GROW.replace("A", "[1]").replace("B", "ns.x + ns.x"),
]
OTHER = [
    "{% for m in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    "{% macro m() %}" + "x" * 10000 + "{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in range(9999999) %}{% endfor %}",
    "{{ 'ab' * 3000000 }}",  # longer than any prompt
]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        *((text, "128 MiB") for text in MEMORY),
        *((text, "0.2 s") for text in TIME),
        *((text, "takes more than") for text in EITHER),
        *((text, "fails") for text in OTHER),
    ],
)
def test_hostile_templates_are_refused(monkeypatch, text, limit):
    """Where they are loaded or used, and this process does not grow."""
    monkeypatch.setattr(template, "MEMORY", 2**27)
    monkeypatch.setattr(template, "SECONDS", 0.2)
    before = peak_memory()
    user_error(lambda: Template(text, where="w").render(TALK), "w", limit)
    assert peak_memory() - before < 2**25


def peak_memory() -> int:
    """The most bytes that this process ever had, by Linux's count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_template_goes_on_after_a_mistake(monkeypatch):
    monkeypatch.setattr(template, "SECONDS", 0.2)
    costly = "{% if messages|length > 2 %}X{% endif %}{{ messages[0].content }}"
    for step in ("{{ 'a' * 10 ** 9 }}", "{{ 9 ** (9 ** (messages|length + 5)) }}"):
        sandboxed = Template(costly.replace("X", step))
        child = sandboxed._sandbox.process.pid
        assert sandboxed.render(TALK[1:2]) == TALK[1]["content"]
        assert sandboxed._sandbox.process.pid == child  # the same, warm
        user_error(lambda sandboxed=sandboxed: sandboxed.render(TALK), "takes more than")
        assert sandboxed.render(TALK[1:2]) == TALK[1]["content"]


def test_half_characters_and_what_is_not_json():
    sandboxed = Template("{{ messages[0].content }}", where="w")
    assert sandboxed.render([{"role": "user", "content": "a\ud800"}]) == "a\ud800"
    user_error(lambda: sandboxed.render([{"role": "user", "content": {1, 2}}]), "messages", "JSON")


# ------------------------------------------------------------------------------------- folders with templates


def folder(path: Path, **values) -> Path:
    """A tiny Llama in Hugging Face's layout, with a token for each byte."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
    vocab = {token: id for id, token in enumerate(specials + alphabet)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(specials)
    sizes = {"hidden_size": 12, "intermediate_size": 23, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=len(vocab), max_position_embeddings=211, **sizes, eos_token_id=0, bos_token_id=3
    )
    LlamaForCausalLM(config).save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", **values).save_pretrained(path)
    return path


def test_folders(tmp_path):
    """A template in either place; prompts are the tokens of transformers."""
    from transformers import AutoTokenizer

    path = folder(tmp_path / "a", chat_template=CHATML)
    assert (path / "chat_template.jinja").is_file()
    model = regard.load(path, "cpu")
    theirs = AutoTokenizer.from_pretrained(path)
    want = theirs.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert model.task.prompt(TALK) == want
    assert 1 in want
    assert model.task.converses
    assert set(model.task.ends) == {0, 2}  # its own, and the end of a turn
    assert model.generation["temperature"] == 0  # who answers says what is likeliest
    (path / "chat_template.jinja").unlink()
    silent = regard.load(path, "cpu")
    assert not silent.task.converses
    assert silent.generation["temperature"] > 0
    config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
    several = [{"name": "other", "template": "x"}, {"name": "default", "template": CHATML}]
    for value in (CHATML, several):
        (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": value}))
        assert regard.load(path, "cpu").task.prompt(TALK) == want
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": 7}))
    user_error(lambda: regard.load(path), path / "tokenizer_config.json", "chat_template")
    (path / "chat_template.jinja").write_bytes(b"\xff")
    user_error(lambda: regard.load(path), path / "chat_template.jinja", "UTF-8")


def test_answers_end_with_a_turn(tmp_path, monkeypatch):
    """Also with beams; a plain text is a message of the user."""
    model = regard.load(folder(tmp_path / "a", chat_template=CHATML), "cpu")
    ends = []
    monkeypatch.setattr("regard.tasks.write.generate", lambda *_, end, **__: ends.append(end) or iter(()))
    model.ask("Hi")
    assert set(ends[0]) == {0, 2}
    monkeypatch.undo()
    monkeypatch.setattr(model.task, "template", Template("{# nothing #}", where="w"))
    user_error(lambda: model.ask("Hi"), "w", "writes no text")
    monkeypatch.undo()
    read = []
    prompt = model.task.prompt
    monkeypatch.setattr(model.task, "prompt", lambda messages: read.append(messages) or prompt(messages))
    model.ask(["Hi", TALK], num_beams=2, max_new_tokens=3, temperature=0)
    assert read == [[{"role": "user", "content": "Hi"}], TALK]
