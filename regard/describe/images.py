"""Descriptions of the parts that read images: patches, convolutions and their regions."""

from typing import Any

from torch import nn

from regard.describe.parts import OUTPUT
from regard.describe.texts import Op, Text, activation, add_bias, sign
from regard.describe.values import EMBEDDING, Description, Term

SPECTROGRAM = Text(
    "Spectrogram, normalised",
    "How loud each mel band is, frame by frame, as the network reads it.",
    "(x / 255 − μ) / σ",
)
IMAGE = Text(
    "Picture, normalised", "The picture as the network reads it, channel by channel.", "(x / 255 − μ_c) / σ_c"
)


def vit(m: Any, d: Description, head: bool = True, image: str | None = None) -> str:
    if image is None:
        image = d.see("image", None, IMAGE, m, "patches", lambda a, *_: a[0])
    about = "The picture cut into patches; each row holds the pixels of one patch."
    height, width = m.patch
    op: Op = {"does": "patch", "x": image, "side": width} | ({} if height == width else {"height": height})
    patches = d.see("patches", op, Text("Patches", about, "x = I[patch]"), m.embed, "input", box="Patches")
    text, box = Text("Embedding", "Each patch becomes a vector.", "E x"), EMBEDDING
    box += "" if m.config.positions == "none" else " + positions"
    x, letters = d.linear("embed", m.embed, patches, text, box=box), "x"
    terms: list[Term] = [] if m.first is None else [(d.weight("first.weight", m.first.weight), 1.0)]
    terms.append((x, 1.0, len(terms)))
    title = "Embedding" if m.first is None else "Class token, embedding"
    if m.config.positions != "none":
        terms.append(grid_positions(m, d))
        letters, title = f"{letters} + p", f"{title} + positions"
    text = Text(title, "What a patch shows and where it is, in one vector.", letters)
    x = m.blocks.describe(d, d.add("sum", text, *terms, module=m.drop, at="input"))
    return d.norm("norm", m.norm, x, box="Norm")


def grid_positions(m: Any, d: Description) -> str:
    """The positions of patches: learned or waves. For images of another size they are interpolated, and not
    opened as sums; a shorter spectrogram has the first ones."""
    table = m.grid_positions(*m.sides)
    W = d.weight("positions.table", table)
    op: Op = {"does": "look up", "W": W, "side": d.side, "by": "position"}
    op |= {} if m.config.mels else {"rows": len(table)}
    about, formula = "A vector for each place of a patch", "p = P[position]"
    if m.positions is None:
        about += ": waves along rows and columns"
        formula = "p = [sin(r ω); cos(r ω); sin(c ω); cos(c ω)]"
    text = Text("Positions", f"{about}.", formula)
    return d.see("positions", op, text, m, "grid_positions", lambda _, __, y: y[None])


def image_encoder(m: Any, d: Description) -> str:
    """A network, a linear layer and positions."""
    op = {"does": "pixel", "x": "pixels", "mean": [127 / 255], "std": [128 / 255]}
    text = (
        IMAGE._replace(formula="(x − 127) / 128")
        if m.zoom == 1
        else IMAGE._replace(about=f"{IMAGE.about} Enlarged {m.zoom} times.", formula="zoom((x − 127) / 128)")
    )
    image = d.see("image", op if m.zoom == 1 else None, text, m.net, "input")
    x = m.net.describe(d.at("net"), image=image)
    text = Text("Projection", "Projected to the width of the decoder.", "W x")
    x = d.linear("project", m.project, x, text, box="Projection")
    return d.same("output", d.norm("norm", m.norm, m.positions.describe(d, x)[0], box="Norm"), OUTPUT, m)


def convolve(d: Description, name: str, m: nn.Conv2d, x: str, f: Any = None, box: str | None = None) -> str:
    """A convolution of f(x) that pads with zeros, so that its result is as large as x, over the stride."""
    op: Op = {"does": "conv", "x": x, "W": d.weight(f"{name}.weight", m.weight.flatten(1))}
    op |= {} if m.bias is None else {"b": d.weight(f"{name}.bias", m.bias)}
    op |= {"size": m.kernel_size[0], "stride": m.stride[0], "groups": m.groups}
    op |= {} if f is None else {"f": activation(f)}
    of = "x" if f is None else f"{sign(f)}(x)"
    each = "channel" if m.groups == 1 else "channel by itself"
    k = m.kernel_size[0]
    about = f"Squares of {k} × {k} numbers of every {each}, weighted and added up."
    return d.see(name, op, Text("Convolution", about, add_bias(f"W ∗ {of}", m)), m, box=box)


CONVOLUTIONS = "Convolutions"
RESIDUAL = "Added to its input, so that this part only learns what to change."


def regions(d: Description, x: str, m: nn.Module, f: Any = None) -> str:
    """The result of a network: a row for each pixel."""
    op = {"does": "regions", "x": x} | ({} if f is None else {"f": activation(f)})
    formula = "y = x" if f is None else f"{sign(f)}(x)"
    return d.see("regions", op, Text("Regions", "A vector for each region, row by row.", formula), m)


def conv_net(m: Any, d: Description, image: str) -> str:
    """x + W₂ relu(norm(W₁ relu(norm(x)))), after a convolution that halves the picture."""
    x, relu = image, nn.functional.relu
    for i, layer in enumerate(m.layers):
        if isinstance(layer, nn.Conv2d):
            x = convolve(d.at("layers"), str(i), layer, x, box=None if i else CONVOLUTIONS)
        elif isinstance(layer, nn.GroupNorm):
            x = d.at("layers").norm(str(i), layer, x)
        else:
            part, (_, first, norm, _, second) = d.at("layers", i), layer.f
            y = convolve(part, "1", first, part.norm("norm", layer.norm, x), relu)
            y = convolve(part, "4", second, part.norm("2", norm, y), relu)
            x = part.add("residual", Text("Residual", RESIDUAL, "x + f(norm(x))"), x, y, module=layer)
    return regions(d, x, m)


def efficient_net(m: Any, d: Description, image: str) -> str:
    """Inverted residuals: a wide layer, one of each channel by itself, and a narrow one."""
    f: Any = nn.functional.relu6
    x, before = (
        convolve(d, "stem", m.stem, image, box=CONVOLUTIONS),
        f,
    )  # `before`: the function that is still to be applied to x
    for i, block in enumerate(m.blocks):
        part, y, g = d.at("blocks", i), x, before
        if block.expand is not None:
            y, g = convolve(part, "expand", block.expand, y, g), f
        y = convolve(part, "project", block.project, convolve(part, "depthwise", block.depthwise, y, g), f)
        if block.adds:
            y = part.add("residual", Text("Residual", RESIDUAL, "x + f(x)"), x, y, module=block)
        x, before = y, None
    return regions(d, convolve(d, "head", m.head, x, before), m, f)
