"""The batch of a model that generates on a GPU: its requests are texts of a `Runner`."""

from collections.abc import Collection
from typing import Any

from regard.decode.buffers import Text
from regard.decode.runner import Runner
from regard.decode.runners import make_runner
from regard.serve.batch import Batch, GenerationRequest, TokenOutput, describe_error, log


class PagedBatch(Batch):
    """Requests join and leave at every step. A token arrives one step after it was begun."""

    def __init__(self, slots: int, runner: Runner | None, *args: Any):
        super().__init__(*args)
        self.slots, self.texts = slots, dict[GenerationRequest, Text]()
        self.owners = dict[Text, GenerationRequest]()
        self.runner = runner

    def warm_up(self) -> None:
        """Capture the graphs of steps, so that no request waits for them."""
        try:
            self._get_runner().warm_up()
        except Exception as error:  # the first request tries again, and gets the error
            log.error("the engine could not be warmed up: %s", describe_error(error))
            self.runner = None

    def _get_runner(self) -> Runner:
        """The runner; after a failure, a new one."""
        self.runner = self.runner or make_runner(self.model, self.slots)
        if self.runner is None:
            raise RuntimeError("the model changed since it was loaded: it can't write over pages any more")
        return self.runner

    def drop_running(self) -> list[GenerationRequest]:
        """After a failed step, drop all running requests, and start again with a new runner."""
        self.runner, self.texts, self.owners = None, {}, {}
        return super().drop_running()

    def remove_finished(self) -> None:
        finished = [request for request in self.running if request.finished]
        self._remove(finished)
        with self.lock:
            self.running = [request for request in self.running if not request.finished]
            self.admitted = [request for request in self.admitted if not request.finished]

    def _remove(self, requests: Collection[GenerationRequest]) -> None:
        for request in requests:
            text = self.texts.pop(request, None)
            if text is not None:
                del self.owners[text]
                if self.runner is not None:
                    self.runner.remove(text)

    def _generate_tokens(self) -> None:
        runner = self._get_runner()
        for request in self.admitted:
            if request.remaining < 1:  # a target prefix that is longer than the context
                self._end(request, "length")
                continue
            s = request
            text = Text(list(s.ids), s.sampling, s.rng, s.remaining, s.source, s.top_logprobs or 0, s.rules)
            self.texts[request], self.owners[text] = text, request
            runner.add(text)
        with self.lock:
            self.running, self.admitted = self.running + self.admitted, []
        outputs = runner.step()
        self.counts["steps"] += bool(outputs)
        for output in outputs:
            owner = self.owners.get(output.text)
            if owner is None or owner.finished:
                continue
            if output.token < 0:
                self._end(owner, ValueError("the model's weights gave NaN or infinite logits for this text"))
            elif owner.top_logprobs is None:
                self._append(owner, output.token)
            else:
                self._append(owner, TokenOutput(output.token, output.logprob, output.top))
            if owner.finished:
                self._remove([owner])
