"""Check shape comments: `x = ...  # (B, T, D)` is checked at every call; a letter has one size per call.

A trailing comment that begins with a parenthesis gives the shape of the tensors its line assigns or returns.
Its dimensions are letters, numbers or expressions of them (`d/2`); a leading `...` stands for any others. A
letter that is also an integer variable of the function (`T, S = ...`) must have that variable's value.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

COMMENT = re.compile(r"#\s*\((.*?)\)")
DIMENSION = re.compile(r"\.\.\.|\w+(\s*[-+*/]\s*\w+)*")


@dataclass(frozen=True)
class Promise:
    """The shape of the names assigned on lines first to last; without names, of the returned value."""

    first: int
    last: int
    names: tuple[str, ...]
    dims: tuple[str, ...]


def promises(path: str | Path) -> list[Promise]:
    """Return every shape comment of a file; raise ValueError if one cannot be checked."""
    source = Path(path).read_text()
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (match := COMMENT.match(token.string)):
            comments[token.start[0]] = tuple(dim.strip() for dim in match[1].split(",") if dim.strip())
    result = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) or node.end_lineno not in comments:
            continue
        dims, names = comments[node.end_lineno], []
        if not isinstance(node, ast.Return):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            nodes = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            names = [n.id for n in nodes if isinstance(n.ctx, ast.Store)]  # `self` in `self.x` is only read
            if not names:
                continue
        if all(DIMENSION.fullmatch(dim) for dim in dims) and "..." not in dims[1:]:
            del comments[node.end_lineno]
            result.append(Promise(node.lineno, node.end_lineno, tuple(names), dims))
    for line, dims in comments.items():
        raise ValueError(f"{path}:{line}: the shape comment ({', '.join(dims)}) cannot be checked")
    return result


class Call:
    """One call of a function: the sizes of its letters, and the promise whose line is running."""

    def __init__(self) -> None:
        self.promise: Promise | None = None
        self.sizes: dict[str, int] = {}

    def check(self, frame: FrameType, promise: Promise, result: Any) -> int:
        """Compare tensors with their promised shapes; return how many were compared."""
        if promise.names:
            values = {name: frame.f_locals.get(name) for name in promise.names}
        else:
            values = dict(enumerate(result)) if isinstance(result, tuple) else {"result": result}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        for name, tensor in tensors.items():
            shape, dims = tuple(tensor.shape), promise.dims
            message = (
                f"{frame.f_code.co_qualname}, line {promise.last}: {name} is {shape}, comment says {dims}"
            )
            if dims[0] == "...":
                dims = dims[1:]
                assert len(shape) >= len(dims), message
                shape = shape[len(shape) - len(dims) :]
            assert len(shape) == len(dims), message
            for size, dim in zip(shape, dims, strict=True):
                expected = self.size(frame, dim, size)
                assert size == expected, f"{message}, {dim} = {expected}"
        return len(tensors)

    def size(self, frame: FrameType, dim: str, size: int) -> float:
        """Return the expected size of a dimension; a new letter takes the size that it has here."""
        letters = re.findall(r"[A-Za-z]\w*", dim)
        for letter in letters:
            if isinstance(value := frame.f_locals.get(letter), int):
                self.sizes[letter] = value
        if all(letter in self.sizes for letter in letters):
            return eval(dim, {"__builtins__": {}}, self.sizes)
        return self.sizes.setdefault(dim.strip(), size)


@contextmanager
def checked(*paths: str | Path) -> Iterator[Counter[tuple[str, int]]]:
    """Check the promises of these files while the block runs; count tensors by (path, line)."""
    by_file = {str(Path(path).resolve()): promises(path) for path in paths}
    checks: Counter[tuple[str, int]] = Counter()

    def promise_at(code: CodeType, line: int) -> Promise | None:
        return next((p for p in by_file[code.co_filename] if p.first <= line <= p.last), None)

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in by_file or code.co_name.startswith("<"):  # a <genexpr> shares its line
            return None
        call = Call()

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            here = promise_at(code, frame.f_lineno) if event == "line" else None
            done = call.promise
            if event == "exception":
                call.promise = None
            elif done is not None and here is not done and (done.names or event == "return"):
                checks[code.co_filename, done.last] += call.check(frame, done, arg)
            if event == "line":
                call.promise = here
            return local

        return local

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        yield checks
    finally:
        sys.settrace(old)
