"""Writing and translating on a CPU in each precision, next to CTranslate2 and transformers; starting.

    python bench/cpu.py [ROW ...] [--repeat 3] [--seconds 5] [--threads N] [--small]
    python bench/cpu.py shortlist --run RUN --pairs test.en test.de
    python bench/cpu.py smollm2 --gguf FILE

Models have random weights, but for the row `shortlist` with a run, whose BLEU is printed, too. Contenders run
in turns and with the same number of threads, each in a process of its own: the threads of CTranslate2, which
go on waiting for work, halve the rate of others in their process. Rates are medians of the repetitions, and
ratios are to CTranslate2 in float32, where it takes part. The row `start` is the wall time of whole commands.
Ends with one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import regard
from regard.bench.folders import gpt_run, letters, transformer_run
from regard.bench.measure import Job, Options, Row, measure, repeated, run
from regard.convert.export import import_extra
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.decode.shortlist import SHORTLIST, make_shortlist
from regard.models import GPTConfig
from regard.runs.export import export
from regard.tasks import Translate
from regard.text.tokenizer_kinds import train_tokenizer

PRECISIONS = ("float32", "bfloat16", "int8", "int4")
PEER = "CTranslate2 float32"
VOCAB = 50257


def ctranslate2_folder(run: Path, folder: Path) -> Path:
    if not folder.exists():
        export(regard.load(run, "cpu"), folder, "ctranslate2")
    return folder


def ask_job(
    run: Path, dtype: str, texts: list[str], new: int, beams: int, options: Options, **more: Any
) -> Job:
    """Ours, as a user asks it; no answer ends before it has all its tokens."""
    model = regard.load(run, "cpu", dtype=dtype)

    def ask() -> float:
        answers = model.ask(texts, num_beams=beams, temperature=0, max_new_tokens=new, **more)
        assert all(len(answer) == new for answer in answers)  # a token is a character
        return float(len(texts) * new)

    return repeated(ask, options)


def write_row(streams: int, options: Options) -> Row:
    """128 new tokens after 32, greedy, GPT-2's size."""
    size, vocab, length, new = options.size(("gpt2", VOCAB, 32, 128), ("pico", 97, 5, 6))
    run, text = gpt_run(options.scratch / f"gpt-{streams}", size, vocab)
    prompts = [text[i * 7 : i * 7 + length] for i in range(streams)]

    def ours(dtype: str) -> Job:
        return ask_job(run, dtype, prompts, new, 1, options)

    def engine(dtype: str) -> Job:
        ctranslate2 = import_extra("ctranslate2")
        folder = ctranslate2_folder(run, options.scratch / f"gpt-{streams}.ct2")
        threads = torch.get_num_threads()
        generator = ctranslate2.Generator(str(folder), compute_type=dtype, intra_threads=threads)
        tokens = [list(prompt) for prompt in prompts]

        def write() -> float:
            results = generator.generate_batch(
                tokens, max_length=new, min_length=new, include_prompt_in_result=False
            )
            assert all(len(result.sequences[0]) == new for result in results)
            return float(streams * new)

        return repeated(write, options)

    def transformers() -> Job:
        model = hf_gpt2(GPTConfig.PRESETS["gpt2"] | GPTConfig.PRESETS[size], vocab)
        ids = torch.randint(vocab, (streams, length))
        mask = torch.ones_like(ids)

        def write() -> float:
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
            return float(streams * new)

        return repeated(write, options)

    contenders: dict[str, Callable[[], Job]] = {f"regard {d}": partial(ours, d) for d in PRECISIONS}
    contenders |= {f"CTranslate2 {d}": partial(engine, d) for d in ("float32", "int8")}
    return Row("tokens", contenders | {"transformers float32": transformers})


def hf_gpt2(shape: dict[str, Any], vocab: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": 1024, "n_embd": shape["dim"], "n_layer": shape["depth"], "n_head": shape["heads"]}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, eos_token_id=None, **sizes))
    return model.eval()


def translate_row(beams: int, options: Options) -> Row:
    """16 sentences of 16 words, 32 tokens of each answer; no answer ends before."""
    preset, vocab, count, new = options.size(("base", 32_000, 16, 32), ("tiny", 97, 3, 5))
    text = letters(vocab - len(Translate.specials) - 1)
    tokenizer = train_tokenizer("char", [text], vocab, Translate.specials)
    run = transformer_run(options.scratch / f"pairs-{beams}", preset, tokenizer)
    texts = [text[i * 16 : i * 16 + 16] for i in range(count)]

    def ours(dtype: str) -> Job:
        return ask_job(run, dtype, texts, new, beams, options)

    def engine(dtype: str) -> Job:
        ctranslate2 = import_extra("ctranslate2")
        folder = ctranslate2_folder(run, options.scratch / f"pairs-{beams}.ct2")
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(str(folder), compute_type=dtype, intra_threads=threads)
        end = tokenizer.tokens([Translate.specials.index("</s>")])
        sources = [[*one, *end] for one in texts]

        def translate() -> float:
            translator.translate_batch(
                sources, beam_size=beams, max_decoding_length=new, min_decoding_length=new
            )
            return float(count * new)

        return repeated(translate, options)

    def student() -> Job:
        deep = transformer_run(options.scratch / "deep", options.size("deep", "tiny"), tokenizer)
        return ask_job(deep, "int8", texts, new, beams, options)

    contenders: dict[str, Callable[[], Job]] = {f"regard {d}": partial(ours, d) for d in PRECISIONS}
    contenders["regard int8, 12 + 1"] = student  # the shape of a distilled student
    return Row("tokens", contenders | {f"CTranslate2 {d}": partial(engine, d) for d in ("float32", "int8")})


def shortlist_row(run: Path | None, pairs: list[str], options: Options) -> Row:
    """Translating with and without a shortlist: 16 sentences as in `beam-4`, where each source token has 100
    random targets; or all sentences of pairs, by a run that has a shortlist."""
    if run is not None:
        return Row("sentences", listed_contenders(partial(scored_job, run, pairs)))
    preset, vocab, count, new = options.size(("base", 32_000, 16, 32), ("tiny", 97, 3, 5))
    text = letters(vocab - len(Translate.specials) - 1)
    tokenizer = train_tokenizer("char", [text], vocab, Translate.specials)
    run = transformer_run(options.scratch / "shortlist", preset, tokenizer)
    lists = np.random.default_rng(0).integers(0, vocab, (tokenizer.vocab, min(100, vocab))).astype(np.int32)
    make_shortlist(lists, np.ones(tokenizer.vocab), [0], shared=True).save(run / SHORTLIST)
    texts = [text[i * 16 : i * 16 + 16] for i in range(count)]

    def job(dtype: str, shortlist: bool) -> Job:
        return ask_job(run, dtype, texts, new, 4, options, shortlist=shortlist)

    return Row("tokens", listed_contenders(job))


def listed_contenders(job: Callable[[str, bool], Job]) -> dict[str, Callable[[], Job]]:
    return {
        f"{dtype}{' listed' if listed else ''}": partial(job, dtype, listed)
        for dtype in ("float32", "int8")
        for listed in (False, True)
    }


def scored_job(run: Path, pairs: list[str], dtype: str, shortlist: bool) -> Job:
    """All sentences once, as a user asks them, and BLEU."""
    model = regard.load(run, "cpu", dtype=dtype)
    data = model.task.held_out(pairs)

    def translate() -> dict[str, float]:
        start = time.perf_counter()
        answers = model.ask(data.sources, shortlist=shortlist)
        seconds = time.perf_counter() - start
        bleu = model.task.score_answers(answers, data.targets)["bleu"]
        return {"count": float(len(answers)), "seconds": seconds, "bleu": bleu}

    return translate


def smollm_row(file: Path | None, options: Options) -> Row:
    """128 tokens after 32, greedy, by a quantised GGUF file of a Llama, such as SmolLM2's."""
    if file is None:
        raise FileNotFoundError("give --gguf FILE")
    ids, new = list(range(1000, 1032)), options.size(128, 6)

    def ours() -> Job:
        model: Any = regard.load(file, "cpu").model
        sampling = Sampling(temperature=0, max_new_tokens=new)
        return repeated(lambda: float(sum(1 for _ in generate(model, [ids], sampling))), options)

    def llama_cpp() -> Job:
        library, threads = import_extra("llama-cpp-python", "llama_cpp"), torch.get_num_threads()
        model = library.Llama(
            str(file), n_threads=threads, n_threads_batch=threads, n_ctx=1024, verbose=False
        )

        def write() -> float:
            model.reset()
            return float(sum(1 for _ in islice(model.generate(ids, temp=0.0, top_k=1), new)))

        return repeated(write, options)

    return Row("tokens", {"llama-cpp-python": llama_cpp, "regard": ours})


def start_row(options: Options) -> Row:
    """Whole commands, from the shell to the answer; a rate is commands per second."""
    run, text = gpt_run(options.scratch / "start", *options.size(("tiny", 1000), ("pico", 97)))

    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def command(*words: str) -> Job:
        def call() -> dict[str, float]:
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
            return {"count": 1.0, "seconds": time.perf_counter() - start}

        return call

    ask = ("-m", "regard", "ask", str(run), text[:5], "--max-new-tokens", "5")
    return Row(
        "commands",
        {
            "regard ask": lambda: command(*ask),
            "import torch": lambda: command("-c", "import torch"),
            "import transformers": lambda: command("-c", "from transformers import GPT2LMHeadModel"),
        },
    )


ROWS: dict[str, Callable[[Options], Row]] = {
    "write-1": partial(write_row, 1),
    "write-8": partial(write_row, 8),
    "greedy": partial(translate_row, 1),
    "beam-4": partial(translate_row, 4),
    "shortlist": partial(shortlist_row, None, []),
    "smollm2": partial(smollm_row, None),
    "start": start_row,
}


def answer_requests(build_job: Callable[[], Job], options: Options) -> None:
    """Be a contender: measure once for every line of input, and answer with its rate."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        job = build_job()
        for _ in sys.stdin:
            print(json.dumps({"count": run(job, options)[0], "seconds": 1.0}), file=answers, flush=True)


def in_own_process(stack: ExitStack, words: list[str], folder: Path) -> Job:
    """A contender that another process of this script is."""
    command = [sys.executable, __file__, *words, "--scratch", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    errors = folder / "errors"
    with errors.open("w") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
    stack.callback(child.communicate)  # at the end of its input it ends

    def job() -> dict[str, float]:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.write("\n")
            child.stdin.flush()
        if line := child.stdout.readline():
            figures: dict[str, float] = json.loads(line)
            return figures
        raise RuntimeError(" ".join(errors.read_text().strip().splitlines()[-1:]) or "it ended")

    return job


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a repetition of a contender")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--run", type=Path, help="a translator with a shortlist, for the row shortlist")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="FILE", help="pairs that it translates")
    parser.add_argument("--gguf", type=Path, help="the file of the row smollm2")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--contender", help=argparse.SUPPRESS)  # which this process is
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if unknown := [name for name in o.rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]}; there are {', '.join(ROWS)}")
    if (o.run is None) != (not o.pairs):
        parser.error("--run and --pairs belong together")
    torch.set_num_threads(o.threads)
    with ExitStack() as stack:
        scratch = o.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = Options(
            torch.device("cpu"), repeat=o.repeat, seconds=o.seconds, small=o.small, scratch=scratch
        )
        rows = ROWS | {"shortlist": partial(shortlist_row, o.run, o.pairs)}
        rows["smollm2"] = partial(smollm_row, o.gguf)
        if o.contender:
            answer_requests(rows[o.rows[0]](options).contenders[o.contender], options)
        else:
            known = [name for name in ROWS if name != "smollm2" or o.gguf]
            print(json.dumps({name: compare(name, rows[name], options, o.gguf) for name in o.rows or known}))


def compare(
    name: str, build_row: Callable[[Options], Row], options: Options, gguf: Path | None
) -> dict[str, float]:
    """Measure the contenders of a row, and print and return their rates."""
    row = build_row(replace(options, scratch=options.scratch / name))
    with ExitStack() as stack:
        if name not in ("start", "shortlist"):  # whose contenders are commands, or only ours
            words = [name, "--seconds", str(options.seconds), "--threads", str(torch.get_num_threads())]
            words += ["--small"] * options.small + (["--gguf", str(gguf)] if gguf else [])
            contenders: dict[str, Callable[[], Job]] = {
                one: partial(
                    in_own_process, stack, [*words, "--contender", one], options.scratch / name / one
                )
                for one in row.contenders
            }
            row = replace(row, contenders=contenders)
        result = measure(row, options)
    rates = {contender: one["rate"] for contender, one in result["results"].items()}
    base = rates.get(PEER) or next(iter(rates.values()))
    for contender, rate in rates.items():
        bleu = result["results"][contender].get("bleu")
        more = "" if bleu is None else f"  BLEU {bleu:.2f}"
        line = f"{name:8} {contender:22} {rate:9.1f} {result['unit']}/s {rate / base:6.2f}x{more}"
        print(line, flush=True)
    for contender, why in result["failed"].items():
        print(f"{name:8} {contender:22} failed: {why}", flush=True)
    return {contender: round(rate, 2) for contender, rate in rates.items()}


if __name__ == "__main__":
    main()
