"""LoRA: no change at first, few trainable weights, and the same outputs when merged; also in whole runs."""

import copy
import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from helpers.errors import user_error
from helpers.runs import ANY, before, checkpoints, tiny, write_data, write_text
from regard.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    GRUConfig,
    ModelWithHead,
    Seq2Seq,
    Transformer,
    TransformerConfig,
)
from regard.runs import lora
from regard.runs.load import load
from regard.runs.model import Model
from regard.training.build import train
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

V, T, B = 29, 11, 3
SIZES = {"vocab": V, "context": T, "dim": 12, "depth": 2}


def gpt(**more: object) -> GPT:
    return GPT(GPTConfig(**SIZES | {"heads": 6, "kv_heads": 3} | more))


def transformer(**more: object) -> Transformer:
    return Transformer(TransformerConfig(**SIZES | {"heads": 3, "dropout": 0.0} | more))


def labelled() -> ModelWithHead:
    return ModelWithHead(Bert(BertConfig(**SIZES, heads=3, dropout=0.0)), outputs=5, dropout=0.0)


MAKERS = {"gpt": gpt, "transformer": transformer, "labelled": labelled}


def read(model: nn.Module) -> Tensor:
    ids = torch.arange(B * T).reshape(B, T) * 7 % V
    return model(ids, ids.flip(1)) if isinstance(model, Transformer) else model(ids)


def taught(model: nn.Module) -> None:
    """Set A and B to random values, as if trained."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, lora.LoRALinear):
                m.lora_A.normal_()
                m.lora_B.normal_(std=0.3)


def layers(model: nn.Module) -> dict[str, lora.LoRALinear]:
    return {name: m for name, m in model.named_modules() if isinstance(m, lora.LoRALinear)}


@pytest.mark.parametrize("kind", MAKERS)
def test_at_first_it_is_the_model(kind: str) -> None:
    model = MAKERS[kind]()
    state, said = model.state_dict(), read(model)
    lora.add(model, 4, 8.0)
    assert read(model).equal(said)
    adapted = model.state_dict()
    assert adapted.keys() > state.keys()
    assert all(adapted[name].equal(t) for name, t in state.items())
    merged = lora.merge(model)
    assert merged.keys() == state.keys()
    assert all(merged[name].equal(t) for name, t in state.items())


@pytest.mark.parametrize("kind", MAKERS)
def test_merged_it_says_the_same(kind: str) -> None:
    model = MAKERS[kind]().eval()
    plain = copy.deepcopy(model)
    first = read(model)
    lora.add(model, 4, 8.0)
    taught(model)
    plain.load_state_dict(lora.merge(model))
    assert (read(model) - first).abs().max() > 1e-4
    torch.testing.assert_close(read(plain), read(model), rtol=0, atol=1e-5)
    torch.testing.assert_close(read(plain.double()), read(model.double()), rtol=0, atol=1e-6)
    before = model.state_dict()
    lora.merge(model)
    assert all(t.equal(before[name]) for name, t in model.state_dict().items())  # a look, not a change
    reads = []

    class Files(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            reads.append(name)
            return super().__getitem__(name)

    merged = lora.Merged(model, Files(before))
    assert merged.keys() == plain.state_dict().keys()
    assert not reads, "only what is asked for is read"
    for name in merged:
        tensor = weakref.ref(merged[name])
        adapted = name.removesuffix(".weight") in layers(model)
        own = {name} | {name.replace("weight", f"lora_{part}") for part in "AB" if adapted}
        assert set(reads) == own
        assert adapted == (tensor() is None), "what was merged is not held"
        reads.clear()


def test_one_layer_is_the_equation() -> None:
    plain = nn.Linear(7, 5)
    W, b = plain.weight.detach().clone(), plain.bias.detach().clone()
    layer = lora.LoRALinear(plain, 3, 6.0)
    assert layer.lora_A.shape == (3, 7)
    assert layer.lora_B.shape == (5, 3)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(2, 11, 7)
    torch.testing.assert_close(layer(x), x @ (W + 6 / 3 * layer.lora_B @ layer.lora_A).mT + b)


def test_a_starts_normal() -> None:
    torch.manual_seed(1)
    A = lora.LoRALinear(nn.Linear(1024, 5), 64, 1.0).lora_A.detach()
    assert A.std() == pytest.approx(1 / 32, rel=0.02)
    assert abs(A.mean()) < 1e-3


def test_queries_and_values_of_every_attention() -> None:
    model = transformer()
    lora.add(model, 4, 8.0)
    assert set(layers(model)) == {
        f"{place}.f.{which}"
        for place in [f"encoder.{i}.attn" for i in (0, 1)]
        + [f"decoder.{i}.{kind}" for i in (0, 1) for kind in ("attn", "cross")]
        for which in "qv"
    }


@pytest.mark.parametrize(("kind", "above"), [("gpt", {"norm"}), ("transformer", set()), ("labelled", None)])
def test_little_learns(kind: str, above: set[str] | None) -> None:
    model = MAKERS[kind]()
    unused = labelled().unused if kind == "labelled" else []
    if unused:
        for part in model.unused:
            part.requires_grad_(False)
        above = {"head", "model.pooler"}
    lora.add(model, 1, 8.0)
    taught(model)
    read(model).square().sum().backward()
    have = {name for name, p in model.named_parameters() if p.grad is not None}
    small = {name for name in have if name.rpartition(".")[2] in ("lora_A", "lora_B")}
    assert len(small) == 2 * len(layers(model))
    assert {name.rpartition(".")[0] for name in have - small} == above
    count = sum(p.numel() for p in model.parameters() if p.grad is not None)
    assert count < 0.15 * sum(p.numel() for p in model.parameters())


def test_mistakes() -> None:
    recurrent = Seq2Seq(GRUConfig(vocab=V, context=T, dim=12))
    user_error(lambda: lora.add(recurrent, 4, 8.0), "train.lora=4", "no attention")
    user_error(lambda: lora.add(gpt(), 13, 8.0), "train.lora=13", "at most 12")


# Whole runs


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text, quick):
    """A model to start from."""
    out = tmp_path_factory.mktemp("finished") / "out"
    tiny(text, out, steps=5)
    return out


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_publishes_a_plain_model(text, finished, tmp_path, optimizer):
    out, models = tmp_path / "out", []
    settings = {"train.lora": 2, "train.optimizer": optimizer, "train.lr": 0.05, "train.batch": 6}
    with before(Trainer, "finish", lambda trainer, *_: models.append(trainer.model)):
        train("write", text, out=out, base=finished, steps=8, set=settings | {"train.device": "cpu"})
    (model,) = models
    loaded, base = load(out, "cpu"), load(finished, "cpu")
    assert not layers(loaded.model)
    ids = torch.randint(loaded.tokenizer.vocab, (3, 11))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids), model.eval()(ids), rtol=1e-6, atol=1e-6)
        assert not torch.allclose(loaded.model(ids), base.model(ids), atol=1e-3)
    asked = {"max_new_tokens": 20, "temperature": 0}
    unmerged = Model(model, loaded.task, loaded.generation)
    assert loaded.ask("The quick", **asked) == unmerged.ask("The quick", **asked)
    published, old = load_file(out / "model.safetensors"), load_file(finished / "model.safetensors")
    assert published.keys() == old.keys()
    changed = {name for name in old if not published[name].equal(old[name])}
    assert changed == {n for n in old if n.endswith(("q.weight", "v.weight"))} | {"norm.weight"}
    checkpoint = load_file(out / "checkpoints" / checkpoints(out)[-1] / "model.safetensors")
    assert checkpoint.keys() - published.keys() == {
        f"{name}.lora_{which}" for name in layers(model) for which in "AB"
    }
    assert all(checkpoint[name].equal(old[name]) for name in old if name != "norm.weight")
    # and from there on, by any other way
    train("write", text, out=tmp_path / "next", base=out, steps=1, set={"train.device": "cpu"})


def test_a_transformer_from_nothing(tmp_path):
    """There are no layers above its blocks: only the small matrices are trained."""
    out, models = tmp_path / "out", []
    data = write_data("translate-transformer", tmp_path)
    with before(Trainer, "finish", lambda trainer, *_: models.append(trainer.model)):
        tiny(
            data,
            out,
            "translate-transformer",
            steps=4,
            model__pre=False,
            train__lora=2,
            train__optimizer="muon",
        )
    (model,) = models
    learning = {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"lora_A", "lora_B"}
    loaded = load(out, "cpu")
    unmerged = Model(model.eval(), loaded.task, loaded.generation)
    assert loaded.ask("7 go to North") == unmerged.ask("7 go to North")


def test_a_labelled_bert(tmp_path):
    data = tmp_path / "labels.tsv"
    data.write_text(
        "text\tlabel\n" + "".join(f"fox {n} is {'big' if n % 2 else 'small'}\t{n % 2}x\n" for n in range(40))
    )
    settings = ANY | {"model.depth": 2, "model.heads": 2, "model.context": 23, "data.vocab": 300}
    settings |= {"train.batch": 7, "train.lora": 2, "train.layer_decay": 0.7, "train.freeze": 1}
    settings |= {"model.pre": False, "task.mean": False}
    models = []
    with before(Trainer, "finish", lambda trainer, *_: models.append(trainer.model)):
        train("classify", str(data), out=tmp_path / "out", steps=4, set=settings)
    (model,) = models
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name in learning if "lora" not in name} == {
        f"{part}.{which}" for part in ("head", "model.pooler") for which in ("weight", "bias")
    }
    assert {name[:15] for name in learning if "lora" in name} == {"model.blocks.1."}
    loaded = load(tmp_path / "out", "cpu")
    unmerged = Model(model.eval(), loaded.task, loaded.generation)
    assert loaded.ask(["fox 3 is big", "fox 4 is small"]) == unmerged.ask(["fox 3 is big", "fox 4 is small"])


def test_the_mean_of_checkpoints(text, tmp_path):
    tiny(text, tmp_path / "out", steps=6, train__lora=2, train__average=3, train__save=2)
    assert "lora" not in str(load_file(tmp_path / "out" / "model.safetensors").keys())
    load(tmp_path / "out")


def test_what_cannot_be_adapted_leaves_no_folder(text, tmp_path):
    data = write_data("translate-gru", tmp_path)
    user_error(lambda: tiny(data, tmp_path / "out", "translate-gru", steps=1, train__lora=2), "train.lora=2")
    user_error(lambda: tiny(text, tmp_path / "out", steps=1, train__lora=9), "train.lora=9", "at most 8")
    user_error(lambda: tiny(text, tmp_path / "out", steps=1, train__lora=-1), "lora=-1")
    user_error(
        lambda: tiny(text, tmp_path / "out", steps=1, train__lora=2, train__lora_alpha=0), "lora_alpha=0"
    )
    assert not (tmp_path / "out").exists()
