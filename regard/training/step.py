"""One step of training: the gradient of a batch, and an update along it."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from regard.decode.prompts import attend_quickly
from regard.errors import UserError
from regard.tasks import Batch
from regard.training import compilation, distributed
from regard.training.config import TrainConfig
from regard.training.dropout import drop_by_bytes
from regard.training.fp8 import use_fp8
from regard.training.graphs import Graphs, set_value
from regard.training.joint import join_products
from regard.training.lean import use_fewer_operations
from regard.training.machine import OUT_OF_MEMORY
from regard.training.objective import Objective
from regard.training.optimizers import make_optimizers
from regard.training.recompute import recompute_blocks
from regard.training.residuals import narrow_residuals


class TrainStep:
    """Computes a gradient and takes a step along it; compiled, and with CUDA graphs, if that pays off."""

    def __init__(
        self,
        objective: Objective,
        config: TrainConfig,
        device: torch.device,
        bf16: bool,
        flops: float,  # of a token, roughly
        report_failure: Callable[[str, object], None],
        is_interrupted: Callable[[], bool],
    ):
        c, model, task = config, objective.model, objective.task
        self.config, self.model, self.device, self.step = config, model, device, 0
        self.report_failure, self.is_interrupted = report_failure, is_interrupted
        self.bf16, self.autocast = bf16, torch.autocast(device.type, torch.bfloat16, enabled=bf16)
        compilation.check_kernels(device, report_failure)
        graphs = compilation.use_graphs(model, task, c, flops, device)
        self.few_shapes = graphs and not task.static_shapes
        task.weights_on(device)  # or the first step would be compiled with making them
        if device.type == "cuda" and c.compile != "off":
            join_products(model)
            if bf16 and compilation.should_compile(task, c, device, graphs):
                narrow_residuals(model)
                drop_by_bytes(model)
        if c.precision == "fp8":
            use_fp8(model, device)
        if c.recompute:
            recompute_blocks(model)
        self.wrapped = distributed.wrap(objective, list(model.blocks), c.parallel, device, c.shard)  # type: ignore[arg-type]
        how = (task, c, device, graphs, self.few_shapes, report_failure)
        self.compiled = compilation.compile_where_it_pays(self.wrapped, *how)  # or `wrapped` itself
        if self.compiled is self.wrapped:
            self.do_without_compiling()
        self.optimizers = make_optimizers(
            model, c.optimizer, c.lr, c.weight_decay, c.beta2, bf16, c.layer_decay, graphs
        )
        self.graphs = Graphs(self.give_up_graphs) if graphs else None
        saved = model.state_dict().keys()
        self.buffers = [b for name, b in model.named_buffers() if name in saved]  # a loss may update them
        self.buffers_before: list[Tensor] = []  # the last gradient
        self.loss = torch.zeros((), device=device)  # summed over the last step
        self.scale: float | Tensor = torch.zeros((), device=device) if graphs else 0.0  # makes it a mean
        self.norm = torch.zeros((), device=device)  # of the gradient of the last step
        self.norm_of_graphs = torch.zeros((), device=device)

    def __call__(self, batches: list[Batch], step: int, lr: float, count: float, first: bool) -> bool:
        """Train on the batches of a step, which have `count` targets in all processes; `first`: this is
        the first step of the process. Return False if a signal interrupted it; then nothing has changed.
        """
        self.step = step
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            group["lr"] = set_value(group["lr"], lr * group["scale"])
        # the processes' gradients are averaged: with this factor, the result is the mean over all targets
        self.scale = set_value(self.scale, distributed.WORLD / count)
        first = first and self.compiled is not self.wrapped
        if self.graphs and not first:
            if self.is_interrupted():
                return False
            self.seed(part=0)
            self.graphs(self.step_at_once, *batches[0])
            self.norm = self.norm_of_graphs
        else:
            compute = self.try_compiled if first else self.compute_gradient
            if not compute(batches):
                self.drop_gradient()
                return False
            self.update()
        for b in self.buffers:  # each process has updated its own buffers
            distributed.all_sum(b).div_(distributed.WORLD)
        return True

    def do_without_compiling(self) -> None:
        """In float32 nothing changes: runs of earlier versions go on bit for bit."""
        if self.device.type == "cpu" and self.bf16:
            use_fewer_operations(self.model)

    def highest_lr(self) -> float:
        """The highest learning rate of all parameters."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return max(float(group["lr"]) for group in groups)

    def compute_gradient(self, batches: list[Batch]) -> bool:
        """Accumulate the gradient of the mean loss. Return False if a signal interrupted it."""
        self.loss.zero_()
        self.buffers_before = [b.clone() for b in self.buffers]
        for i, batch in enumerate(batches):
            if self.is_interrupted():
                return False
            self.seed(i)
            with distributed.gradient_sync(self.wrapped, last=i == len(batches) - 1):
                self.add_gradient(*batch)
        return True

    def add_gradient(self, *batch: Tensor) -> None:
        longest = max(t.shape[-1] for t in batch) if self.few_shapes else math.inf
        with self.autocast, attend_quickly(longest):
            part = self.forward(*batch)
        (part * self.scale).backward()
        self.loss += part.detach()

    def update(self) -> None:
        """Clip the gradient, take a step along it, and clear it."""
        self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or float("inf"))
        for optimizer in self.optimizers:
            optimizer.step()
        self.zero_grad()

    def step_at_once(self, *batch: Tensor) -> None:
        """`compute_gradient` and `update` for a batch of one part; results keep their place in memory."""
        self.loss.zero_()
        self.add_gradient(*batch)
        self.update()
        self.norm_of_graphs.copy_(self.norm)

    def give_up_graphs(self, what: str, error: Exception) -> None:
        """After a step that could not be captured: its gradients, if it had come to some, are of memory that
        nothing was written to, and the step that takes its place would add to them."""
        self.zero_grad()
        self.report_failure(what, error)

    def seed(self, part: int) -> None:
        """Seed random numbers by the seed, the step, the part and the process."""
        numbers = np.random.SeedSequence([self.config.seed, self.step, part, distributed.RANK])
        seed = int(numbers.generate_state(1)[0])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes longer than a small model's layer
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(seed)

    def forward(self, *batch: Tensor) -> Tensor:
        return self.compiled(*batch)

    def drop_gradient(self) -> None:
        """Discard the last gradient, and restore the model as it was before."""
        self.zero_grad()
        for b, before in zip(self.buffers, self.buffers_before, strict=True):
            b.copy_(before)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def try_compiled(self, batches: list[Batch]) -> bool:
        """Compute the first gradient; if torch.compile fails, continue without it."""
        problem: object = "the gradient is zero"  # torch 2.11 lost gradients without an error
        try:
            done = self.compute_gradient(batches)
            if not done or compilation.has_gradient(self.model):
                return done
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if any(words in str(error).lower() for words in OUT_OF_MEMORY):
                raise
            problem = error
        self.report_failure("torch.compile", problem)
        self.compiled = self.wrapped
        self.do_without_compiling()
        self.drop_gradient()
        return self.compute_gradient(batches)
