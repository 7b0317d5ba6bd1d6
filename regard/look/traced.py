"""Pictures of what a trace holds."""

from regard.errors import Mistake
from regard.recipe import nearest
from regard.trace import Trace, sides

from . import Picture, draw
from .views import Maps, Matrix, shown


def picture(trace: Trace, name: str, head: int | None = None) -> Picture:
    """An attention of a trace: the mean over its heads, or one head; over a picture, where there is one."""
    name = name.removesuffix(".weights")
    if name not in trace.attentions:
        raise Mistake(f"{name}: no attention of this trace; {nearest(name, trace.attentions)}")
    weights = trace[f"{name}.weights"].float().cpu().numpy()  # (H, T, S)
    if head is not None and not 0 <= head < len(weights):
        raise Mistake(f"head={head}: there are heads 0 to {len(weights) - 1}")
    chosen = weights.mean(0) if head is None else weights[head]
    of = f", mean of {len(weights)} heads" if head is None and len(weights) > 1 else ""
    title = name + (of if head is None else f", head {head}")
    rows, columns = trace.sides(name)
    if "grid" not in trace.about or sides(name)[1] == "target":
        return Picture(draw.scene(Matrix(title, chosen, rows, columns)))
    R, C = trace.about["grid"]
    if len(rows) == len(columns):  # patches look at each other: what stands for all of them, as in `classes`
        rows = rows[:1] if len(rows) > R * C else ["mean of all patches"]
        chosen = chosen[:1] if rows == ["class"] else chosen.mean(0, keepdims=True)
    maps = chosen[:, chosen.shape[1] - R * C :].reshape(-1, R, C)
    return Picture(draw.scene(Maps(title, shown(trace["pixels"]), maps, rows)))
