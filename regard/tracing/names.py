"""The names of a trace: the module, layer, stack and tokens that a name refers to."""

from torch import nn


def trace_names(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every submodule with its name in a trace: without the `f` of residual wiring or a wrapper's name."""
    names = []
    for path, m in module.named_modules():
        parts = [part for part in path.split(".") if part != "f"]
        if parts[0] == "model":
            parts = parts[1:]
        if parts and parts[0].startswith(("encoder_", "decoder_")):
            parts[:1] = parts[0].split("_")
        if parts == ["target_embed"]:
            parts = ["decoder", "embed"]
        names.append((".".join(parts), m))
    return names


def layer_index(name: str) -> int | None:
    """The index of the block that a name belongs to, or None."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def stack_prefix(name: str) -> str:
    """The prefix of the names of a block's stack, such as "decoder."; "" if there is only one stack."""
    parts = name.split(".")
    before = parts[: next((i for i, part in enumerate(parts) if part.isdecimal()), 0)]
    before = before[:-1] if before[-1:] == ["blocks"] else before
    return "".join(f"{part}." for part in before)


def attention_sides(name: str) -> tuple[str, str]:
    """The sides of an attention's queries and keys: keys of `Trace.tokens`."""
    parts = name.split(".")
    if parts[0] == "encoder":
        return "source", "source"
    if {"cross", "look"} & set(parts):
        return "target", "source"
    return ("target", "target") if parts[0] == "decoder" else ("text", "text")
