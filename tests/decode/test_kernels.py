"""The operations of a step of generation: plain ones against the model's modules, fused ones against these.

Triton's interpreter runs the fused ones where there is no GPU.
"""

import importlib.util
import itertools
import math
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.attention import Attention
from regard.core.positions import ALiBi, Rotary
from regard.decode.kernels import Norm, for_device, plain
from regard.decode.sampling import sample_tokens

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # of Triton's interpreter
L = 4  # tokens of a page
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def fused():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    if DEVICE.type == "cuda":
        yield for_device(DEVICE)
        return
    with pytest.MonkeyPatch.context() as patch:
        from regard.decode.kernels import fused

        choose = fused.choose_tiles  # numpy's products, unlike tensor cores', round by their shapes
        patch.setattr(fused, "choose_tiles", lambda *args: choose(*args) | {"BLOCK_M": 16, "BLOCK_N": 16})
        yield fused


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def same_row(a: Tensor, b: Tensor) -> bool:
    """Bit for bit on a GPU; numpy, with which Triton's interpreter multiplies, may round by the shape."""
    return torch.equal(a, b) if DEVICE.type == "cuda" else torch.allclose(a, b, rtol=1e-2, atol=1e-3)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


def make_norm(width: int, centered: bool, dtype: torch.dtype = torch.float32) -> Norm:
    bias = normal(width, dtype=dtype) if centered else None
    return Norm(normal(width, dtype=dtype), bias, 1e-5, centered)


def make_pages(R: int, N: int, G: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pages of keys and of values with numbers in them, and tables (R, N) of different pages for each row."""
    P = R * N + 3
    tables = torch.randperm(P)[: R * N].view(R, N).int().to(DEVICE)
    return normal(P, G, L, d, dtype=dtype), normal(P, G, L, d, dtype=dtype), tables


def assert_close(a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, b.float().abs().max().item()))


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


# The plain ones against the model's modules


@pytest.mark.parametrize("centered", [True, False])
def test_plain_products(centered):
    D, M = 7, 5
    norm = make_norm(D, centered)
    module = torch.nn.LayerNorm(D, norm.eps) if centered else torch.nn.RMSNorm(D, norm.eps)
    module.load_state_dict({"weight": norm.weight} | ({"bias": norm.bias} if centered else {}))
    x, w, b, up = normal(3, D), normal(M, D), normal(M), normal(M, D)
    y = module.to(DEVICE)(x)
    torch.testing.assert_close(plain.norm_linear(x, norm, w, b), y @ w.T + b)
    torch.testing.assert_close(plain.norm_linear(x, None, w, None, "gelu"), F.gelu(x @ w.T))
    gated = plain.norm_linear(x, norm, torch.cat([w, up]), None, "silu", gated=True)
    torch.testing.assert_close(gated, F.silu(y @ w.T) * (y @ up.T))
    h, out = normal(3, M), normal(D, M)
    torch.testing.assert_close(plain.linear_residual(h, out, None, x, norm), y + h @ out.T)
    torch.testing.assert_close(plain.linear_residual(h, out, x[0], x), x + h @ out.T + x[0])


ATTENTIONS = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "rotary": {"positions": Rotary},
    "norms": {"qk_norm": 1e-6, "positions": Rotary, "kv_heads": 3},
    "window": {"window": 4},
    "bias": {"positions": ALiBi, "kv_heads": 2},
}


@pytest.mark.parametrize("options", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("parts", [(13,), (1,) * 13, (5, 1, 7)], ids=["at once", "one by one", "in parts"])
def test_plain_attention_is_that_of_the_model(options, parts):
    T, H, d = 13, 6, 4
    D, G = H * d, options.get("kv_heads", H)
    positions = options.get("positions")
    modules = {k: v for k, v in options.items() if k in ("window", "qk_norm")}
    attention = Attention(D, H, G, causal=True, globals=0, **modules).to(DEVICE).eval()
    table = positions and positions(T, D, H).to(DEVICE)
    is_rotary, is_bias = positions is Rotary, positions is ALiBi
    x = normal(1, T, D)
    pos = torch.arange(T, device=DEVICE)
    with torch.no_grad():
        if attention.window is None and "qk_norm" in options:
            attention.q_norm.weight.copy_(normal(d))
        expected = attention(
            x, rotary=table.rotary(pos) if is_rotary else None, bias=table.bias(T, T) if is_bias else None
        )[0]  # (T, D)
        qkv = torch.cat([attention.q(x), attention.k(x), attention.v(x)], dim=-1)[0]
    norms = [
        Norm(m.weight.detach(), None, m.eps, False) if "qk_norm" in options else None
        for m in (attention.q_norm, attention.k_norm)
    ]
    k_pages, v_pages, tables = make_pages(1, 4, G, d, torch.float32)
    bias = -table.slopes[:, None] * torch.arange(T, device=DEVICE) if is_bias else None
    heads = []
    for start, rows in zip(torch.tensor((0, *parts)).cumsum(0).tolist(), parts, strict=False):
        at = torch.arange(start, start + rows, device=DEVICE).int()
        same_text = tables.expand(rows, -1)
        q = plain.write_pages(
            qkv[start : start + rows], k_pages, v_pages, same_text, at,
            (table.cos, table.sin) if is_rotary else None, *norms,
        )  # fmt: skip
        heads.append(
            plain.paged_attention(q, k_pages, v_pages, same_text, at + 1, bias, options.get("window"))
        )
    with torch.no_grad():
        torch.testing.assert_close(attention.out(torch.cat(heads).flatten(1)), expected)


def test_plain_pages_by_hand():
    """Keys and values gathered one by one; pages of other rows, and those of rows that are not used, stay."""
    R, N, H, G, d = 3, 2, 4, 2, 5
    k_pages, v_pages, tables = make_pages(R, N, G, d, torch.float32)
    before = k_pages.clone()
    qkv, positions = normal(R, (H + 2 * G) * d), int32(6, -1, 3)
    q = plain.write_pages(qkv, k_pages, v_pages, tables, positions)
    torch.testing.assert_close(q.flatten(1), qkv[:, : H * d])
    changed = (k_pages != before).any(-1).any(1).nonzero().tolist()
    assert sorted(changed) == sorted([[tables[0, 1].item(), 2], [tables[2, 0].item(), 3]])
    out = plain.paged_attention(q, k_pages, v_pages, tables, positions + 1)
    assert (out[1] == 0).all()
    for r, h in ((0, 0), (0, 3), (2, 1)):
        cells = [(tables[r, t // L], h // 2, t % L) for t in range(positions[r] + 1)]
        k, v = (torch.stack([pages[cell] for cell in cells]) for pages in (k_pages, v_pages))
        torch.testing.assert_close(out[r, h], (k @ q[r, h] / math.sqrt(d)).softmax(0) @ v)


def test_plain_sample():
    logits, u = normal(4, 29), torch.rand(4, 3, device=DEVICE)
    temperature = torch.tensor([1.0, 0.0, 0.5, 1.0], device=DEVICE)
    logits[3, 2] = math.nan
    tokens, logprobs = plain.sample(logits, temperature, u)
    expected = sample_tokens(logits[[0, 2]] / temperature[[0, 2], None], u[[0, 2]])
    assert tokens.tolist() == [expected[0], logits[1].argmax(), expected[1], -1]
    rows = torch.arange(3, device=DEVICE)
    torch.testing.assert_close(logprobs[:3], logits.log_softmax(-1)[rows, tokens[:3]])
    assert logprobs[3].isnan()


# The fused ones against the plain

DTYPES = [torch.float16, torch.float32]  # the interpreter's products of bfloat16 are wrong
CASES = [  # D, M, activation, gated, layer norm
    (45, 38, None, False, True),
    (45, 38, "gelu_tanh", False, None),
    (272, 9, "gelu", False, False),
    (45, 19, "silu", True, False),
    (2100, 3, "relu", False, True),  # more than one block of the norm
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("D", "M", "activation", "gated", "centered"), CASES)
def test_norm_linear(fused, dtype, D, M, activation, gated, centered):
    x = 2 * normal(19, D) + 1
    norm = None if centered is None else make_norm(D, centered, dtype)
    w, b = normal(M * (1 + gated), D, dtype=dtype) / D**0.5, normal(M * (1 + gated), dtype=dtype)
    args = norm, w, b, activation, gated
    result = fused.norm_linear(x, *args)
    assert_close(result, plain.norm_linear(x, *args), dtype)
    for rows in ([0], [18, 3], list(range(5, 18))):
        assert same_row(fused.norm_linear(x[rows], *args), result[rows]), "a row depends on the others"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_the_order_of_a_sum_does_not_depend_on_the_rows(fused, dtype, gated):
    for M, K in ((768, 768), (2304, 768), (768, 3072), (100, 45), (4096, 14336), (50257, 768)):
        tiles = [fused.choose_tiles(R, M, K, dtype, gated) for R in (1, 2, 16, 17, 64, 200)]
        assert len({(t["S"], t["S"] > 1 and t["BLOCK_K"]) for t in tiles}) == 1
        assert len({t["num_warps"] for t in tiles}) == 1, "the norm of a row too"


WIDE = [(768, 768), (2304, 768), (768, 3072), (101, 45), (3072, 768), (512, 512), (4099, 520)]


@pytest.mark.parametrize("gated", [False, True])
def test_wide_tiles_sum_in_the_same_segments(fused, gated):
    for (M, K), R in itertools.product(WIDE, (17, 64, 200, 1024)):
        wide = fused.choose_wide_tiles(R, M, K, torch.bfloat16, gated)
        narrow = fused.choose_tiles(1, M, K, torch.bfloat16, gated)
        assert wide["S"] == narrow["S"]
        assert wide["S"] == 1 or fused.UNIT.value == narrow["BLOCK_K"], "segments have one length"
    assert fused.choose_wide_tiles(16, 768, 768, torch.bfloat16, gated) is None
    assert fused.choose_wide_tiles(200, 768, 768, torch.float32, gated) is None


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_wide_products(fused, gated, large, monkeypatch):
    """As the plain ones; on Hopper, each row to the bit as alone."""
    dtype = torch.float16
    if DEVICE.type == "cuda":
        monkeypatch.setattr(fused, "LARGE", 1 if large else 4096)
    else:
        monkeypatch.setattr(fused, "is_hopper", lambda device: True)
        wide = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 64, "S": 1 if large else 4, "num_warps": 4}
        monkeypatch.setattr(fused, "choose_wide_tiles", lambda *sizes: wide if sizes[0] > 16 else None)
    for M, K in [(21, 300)] if DEVICE.type == "cpu" else WIDE:
        x, residual, norm = normal(197, K, dtype=dtype)[: 19 if DEVICE.type == "cpu" else 197], None, None
        w, b = normal(M * (1 + gated), K, dtype=dtype) / K**0.5, normal(M * (1 + gated), dtype=dtype)
        if gated:
            ours, args = "norm_linear", (norm, w, b, "silu", True)
        else:
            residual = normal(len(x), M)
            ours, args = "linear_residual", (w, b, residual)
        result = getattr(fused, ours)(x, *args)
        assert_close(result, getattr(plain, ours)(x, *args), dtype)
        if DEVICE.type == "cpu":  # numpy's products round by their shapes
            continue
        for rows in ([3], [196], list(range(50, 60))):
            own = args if gated else (w, b, residual[rows].contiguous())
            assert same_row(getattr(fused, ours)(x[rows], *own), result[rows]), (M, K, rows)


def test_normalize(fused):
    x, norm = normal(7, 33), Norm(normal(33), normal(33), 1e-5, True)
    result = fused.normalize(x, norm)
    assert_close(result, plain.normalize(x, norm), torch.float32)
    assert same_row(fused.normalize(x[2:3], norm), result[2:3]), "a row depends on the others"


def test_norm_linear_with_many_outputs(fused, monkeypatch):
    monkeypatch.setattr(fused, "LARGE", 64)
    x, norm, w = normal(19, 45), make_norm(45, True, torch.float16), normal(131, 45, dtype=torch.float16)
    result = fused.norm_linear(x, norm, w, out_dtype=torch.float32)
    assert_close(result, plain.norm_linear(x, norm, w, out_dtype=torch.float32), torch.float16)
    assert same_row(fused.norm_linear(x[[7]], norm, w, out_dtype=torch.float32), result[[7]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("centered", [None, True, False])
def test_linear_residual(fused, dtype, centered):
    K, D = 300, 21
    x, w, b = normal(19, K, dtype=dtype), normal(D, K, dtype=dtype) / K**0.5, normal(D, dtype=dtype)
    residual, norm = normal(19, D), None if centered is None else make_norm(D, centered, dtype)
    result = fused.linear_residual(x, w, b, residual, norm)
    assert_close(result, plain.linear_residual(x, w, b, residual, norm), dtype)
    assert same_row(fused.linear_residual(x[[9]], w, b, residual[[9]], norm), result[[9]])


ATTENDS = [  # H, G, d, dtype, options
    (2, 2, 6, torch.bfloat16, {}),
    (6, 2, 8, torch.float32, {}),
    (2, 1, 8, torch.float16, {"window": 50}),
    (2, 1, 8, torch.float32, {"bias": 23}),
]


@pytest.mark.parametrize(("H", "G", "d", "dtype", "options"), ATTENDS, ids=str)
def test_attention(fused, H, G, d, dtype, options):
    R, N = 4, 90  # up to 360 keys: three chunks
    k_pages, v_pages, tables = make_pages(R, N, G, d, dtype)
    qkv, angle = normal(R, (H + 2 * G) * d, dtype=dtype), normal(N * L, d // 2)
    positions = int32(301, -1, 7, 128)
    writing = (angle.cos(), angle.sin()), make_norm(d, False, dtype), make_norm(d, True, dtype)
    options = {k: normal(H, v) if k == "bias" else v for k, v in options.items()}

    def run(ops: ModuleType, rows: list[int]) -> tuple[Tensor, ...]:
        k, v = k_pages.clone(), v_pages.clone()
        q = ops.write_pages(qkv[rows], k, v, tables[rows], positions[rows], *writing)
        return ops.paged_attention(q, k, v, tables[rows], positions[rows] + 1, **options), q, k, v

    result = run(fused, [0, 1, 2, 3])
    for a, b in zip(result, run(plain, [0, 1, 2, 3]), strict=True):
        assert_close(a, b, dtype)
    assert same_row(run(fused, [0])[0], result[0][[0]]), "a row depends on the others"

    k, v = k_pages.clone(), v_pages.clone()
    ahead = qkv.clone()  # as by the product: the kernel ahead writes no pages
    together = fused.write_and_attend(ahead, k, v, tables, positions, *writing, **options)
    # As by two kernels. In float32 up to the last bit on a GPU: each sums up a head's norm in its own order.
    last_bit = {} if dtype == torch.float32 and DEVICE.type == "cuda" else {"rtol": 0, "atol": 0}
    for a, b in zip((together, k, v), (result[0], *result[2:]), strict=True):
        torch.testing.assert_close(a, b, **last_bit)
    k, v = k_pages.clone(), v_pages.clone()
    assert_close(plain.write_and_attend(qkv, k, v, tables, positions, *writing, **options), together, dtype)


def test_programs_share_chunks(fused, monkeypatch):
    """The same bits, however many programs share the chunks of a row."""
    from regard.decode.kernels import fused_attention

    R, G, H, N, d = 5, 2, 4, 90, 8  # up to 360 keys: six chunks
    k_pages, v_pages, tables = make_pages(R, N, G, d, torch.float32)
    q, lengths = normal(R, H, d), int32(301, 0, 7, 128, 360)
    qkv, positions = normal(R, (H + 2 * G) * d), int32(301, -1, 7, 128, 359)
    results = []
    for programs in (1, 2 * R * G, 4 * R * G, 1024):
        monkeypatch.setattr(fused_attention, "PROGRAMS", programs)
        k, v = k_pages.clone(), v_pages.clone()
        alone = fused.paged_attention(q, k, v, tables, lengths, None, 200)
        results.append([alone, fused.write_and_attend(qkv, k, v, tables, positions), k, v])
    for first, *more in zip(*results, strict=True):
        assert all(torch.equal(first, result) for result in more)
    torch.testing.assert_close(
        results[0][0], plain.paged_attention(q, k_pages, v_pages, tables, lengths, None, 200)
    )


def test_attention_reads_no_unused_pages(fused):
    k_pages, v_pages, tables = make_pages(1, 8, 1, 8, torch.float32)
    q, lengths = normal(1, 2, 8), int32(5)
    expected = plain.paged_attention(q, k_pages, v_pages, tables, lengths)
    for pages in (k_pages, v_pages):
        pages[tables[0, 2:].long()] = math.nan
    tables[0, 2:] = tables[0, 7]
    torch.testing.assert_close(fused.paged_attention(q, k_pages, v_pages, tables, lengths), expected)


def test_both_have_all_operations(fused):
    assert all(callable(getattr(ops, name)) for name in fused.__all__ for ops in (fused, plain))


def test_copy_pages(fused):
    """The tokens that matter, in all layers; a page may be copied to itself."""
    keys, values = normal(2, 9, 3, L, 8), normal(2, 9, 3, L, 8)
    source, target, lengths = int32(1, 4, 4, 7), int32(0, 4, 8, 6), int32(L, 2, 3, 0)
    copies = [t.clone() for t in (keys, values)]
    plain.copy_pages(*copies, source, target, lengths)
    before = keys.clone()
    fused.copy_pages(keys, values, source, target, lengths)
    for ours, expected in zip((keys, values), copies, strict=True):
        for page, n in zip(target.tolist(), lengths.tolist(), strict=True):
            assert torch.equal(ours[:, page, :, :n], expected[:, page, :, :n])
    assert torch.equal(keys[:, 6], before[:, 6]), "nothing of it matters"


def test_sample_suppressed(fused):
    """Never a suppressed token; its probability still counts in that of others."""
    V = 1000
    logits, u = normal(6, V), torch.rand(6, 3).to(DEVICE)
    temperature = torch.tensor([0.0, 0.0, 1.0, 0.7, 1.0, 0.0], device=DEVICE)
    likeliest = logits.topk(3).indices
    suppressed = torch.cat([likeliest, torch.full((6, 2), -1, device=DEVICE)], 1)
    suppressed[1] = -1
    logits[4, 5:], suppressed[4] = -math.inf, torch.arange(5, device=DEVICE)  # nothing is left
    logits[5, likeliest[5, 0]] = math.inf
    tokens, logprobs = fused.sample(logits, temperature, u, suppressed)
    expected, expected_logprobs = plain.sample(logits, temperature, u, suppressed)
    assert tokens.tolist() == expected.tolist()
    assert tokens[[4, 5]].tolist() == [-1, -1]
    assert tokens[0] == logits[0].topk(4).indices[3]
    assert tokens[1] == likeliest[1, 0]
    torch.testing.assert_close(logprobs, expected_logprobs, equal_nan=True)
    torch.testing.assert_close(logprobs[0], logits.log_softmax(-1)[0, tokens[0]])


def test_sample(fused):
    V = 1000
    logits, u = 4 * normal(11, V), torch.rand(11, 3).to(DEVICE)
    temperature = torch.tensor([1.0, 0.5, 1.7, 0.0, 1.0, 0.3, 0.0, 1.0, 1.0, 0.0, 1.0], device=DEVICE)
    logits[3, [17, 400]] = 50.0  # of equals, the first
    logits[4, 1:-1] = -math.inf
    logits[5, ::2] = -math.inf
    logits[6, 5], logits[7, 5], logits[8] = math.nan, math.inf, -math.inf
    u[0], u[1] = 0.0, 1.0
    tokens, logprobs = fused.sample(logits, temperature, u)
    expected, expected_logprobs = plain.sample(logits, temperature, u)
    assert tokens.tolist() == expected.tolist()
    assert tokens[[3, 6, 7, 8]].tolist() == [17, -1, -1, -1]
    torch.testing.assert_close(logprobs, expected_logprobs, equal_nan=True)
    again = fused.sample(logits[[10]], temperature[[10]], u[[10]])
    assert (again[0] == tokens[10]).all()
    assert (again[1] == logprobs[10]).all()


def make_beams(B: int, K: int, T: int, N: int, ends: list[int]) -> plain.Beams:
    """Searches in the middle of their texts, of which the last but one is over."""
    own = torch.randperm(2 * B * K * N).view(2, B * K, N).int().to(DEVICE)
    texts = torch.randint(100, (2, B, K, T), device=DEVICE, dtype=torch.int32)
    steps = torch.randint(T - 1, (B,), device=DEVICE)
    steps[0], steps[-1] = 0, T - 1
    sums, scores = -torch.rand(B, K, device=DEVICE) - 5, -torch.rand(B, K, device=DEVICE) - 2
    sums[0, 1:], scores[0], scores[1, 1:] = -math.inf, -math.inf, -math.inf
    over = torch.zeros(B, dtype=torch.bool, device=DEVICE)
    over[-2] = True
    positions = (steps + 3).repeat_interleave(K).int()
    positions[-2 * K : -K] = -1
    return plain.Beams(
        sums=sums,
        scores=scores.sort(descending=True).values,
        texts=texts[0],
        finished=texts[1],
        steps=steps,
        over=over,
        ids=int32(*[7] * (B * K)),
        positions=positions,
        tables=own[0].flip(0).contiguous(),
        own=own,
        penalties=torch.arange(1, T + 3, device=DEVICE) ** 0.6,
        bounds=torch.full((T + 1,), T**0.6, device=DEVICE),
        ends=torch.tensor(ends, dtype=torch.long, device=DEVICE),
    )


@pytest.mark.parametrize(
    ("V", "K", "ends"),
    [(29, 3, [2]), (2100, 4, [2, 2099]), (61, 1, []), (7, 5, [3]), (2100, 6, [5])],
    ids=str,
)
def test_advance_beams(fused, V, K, ends):
    """Some steps of searches: the same texts, sums, tables and pages as by the plain one."""
    B, T, N = 5, 70, 19
    ours = make_beams(B, K, T, N, ends)
    expected = plain.Beams(**{name: t.clone() for name, t in vars(ours).items()})
    for _ in range(4):
        logits = 3 * normal(B * K, V)
        for end in ends:
            logits[::3, end] += 9
        pages = fused.advance_beams(ours, logits, logits.logsumexp(-1), L)
        expected_pages = plain.advance_beams(expected, logits, logits.logsumexp(-1), L)
        for name in ("scores", "steps", "over", "positions"):
            torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=1e-6, atol=0)
        assert torch.equal(*(beams.finished[expected.scores.isfinite()] for beams in (ours, expected)))
        live = expected.sums.isfinite()  # nothing comes of the others, and what is in their places is open
        for a, b in zip(pages, expected_pages, strict=True):
            assert torch.equal(a.view(B, K)[live], b.view(B, K)[live].int())
        for name in ("sums", "texts", "ids", "tables"):
            a, b = (getattr(beams, name).view(B, K, -1)[live] for beams in (ours, expected))
            torch.testing.assert_close(a, b, rtol=1e-6, atol=0, msg=name)


def test_beams_of_logits_that_are_not_finite(fused):
    """Nothing is chosen outside of the vocabulary, and nothing finishes."""
    beams = make_beams(3, 2, 9, 5, [1])
    beams.scores.fill_(-math.inf)
    logits = normal(6, 31)
    logits[:2], logits[2] = math.nan, -math.inf
    fused.advance_beams(beams, logits, logits.logsumexp(-1), L)
    assert beams.scores[0].isneginf().all()
    assert ((beams.ids >= 0) & (beams.ids < 31)).all()
