"""An encoder that takes requests at any time, and computes those that are there together.

Texts are tokenised and images decoded while others are computed: short texts by the thread that
submits them, longer ones and images by threads of their own. What is ready joins the next
micro-batch, in which every request has its share. Who would be answered too late is not taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

from fusewire.engine.admission_block import AdmissionBlock
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.encoder_admission import EncoderAdmission, sum_of_squares
from fusewire.engine.expectation import Expectation
from fusewire.engine.progress import Progress
from fusewire.engine.reading_lanes import Lane, ReadingLanes
from fusewire.engine.ready_queue import ReadyQueue
from fusewire.engine.request import (
    CANCELLED,
    CLOSED,
    Answer,
    Counts,
    Member,
    Request,
    Work,
    failure,
)
from fusewire.errors import Cancelled, DeadlineExceeded, FusewireError, Unavailable
from fusewire.tasks.task import Reader

_log = logging.getLogger(__name__)

TOO_LATE = (
    "timeout: got a request whose time has passed, wanted to compute it within it; allow more "
    "time, or try again later"
)

DISPLACED = (
    "timeout: got a request whose time was taken by requests of higher priority, wanted to compute "
    "it within it; allow more time, or try again later"
)

# Most tokens of a request that the submitting thread may compute itself.
LIGHT_TOKENS = 512
# Most predicted seconds of what it computes itself at once: meanwhile the server's queue grows in
# front of it, unseen.
_MOST_HERE_S = 0.02
# Micro-batches that each lane reads ahead: pixels of images take memory.
_READ_AHEAD = 2
# Far more than a micro-batch takes: a device that has hung must not hang the program's end.
_LONGEST_MICRO_BATCH_S = 60.0


class EncoderLoop:
    """An Engine (protocol.py) for `Request`s; a request has one event, its Answer."""

    def __init__(
        self,
        engine: EncoderEngine,
        computed: Callable[[Counts], None] = lambda counts: None,
        block: AdmissionBlock | None = None,
    ) -> None:
        """`computed`: called with what was done, from the threads that did it; it must return at
        once. `block`: where a server's front reads what would be refused."""
        self._engine = engine
        self._computed = computed
        self._run = engine.micro_batches(self._end_computed)
        self._costs = engine.costs
        self._admission = EncoderAdmission(
            engine.costs,
            Expectation(
                engine.max_length,
                windows=engine.reads_windows,
                image_tokens=engine.image_tokens,
            ),
            engine.settings.slo_ms,
            engine.settings.max_queue_ms,
            clock=time.monotonic,
            block=block,
        )
        self._given: list[Work] = []  # all sequences of which were given to the device
        self._reading = threading.Lock()  # over the engine's own tokenizer
        self._computing = threading.Lock()  # over the model
        self._changed = threading.Condition()  # over all that follows
        self._ready = ReadyQueue()  # tokenised, with sequences to compute
        self._not_ended: set[Work] = set()
        self._tokenize_seconds = 0.0  # since `computed` was called
        self._closing = False
        self._own = threading.local()  # .together: what this thread submits together
        self._lanes = ReadingLanes(engine)
        self._thread = threading.Thread(target=self._compute_ready, name="encode", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        return self._engine.progress

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until all that was taken is computed. From any thread."""
        return self._admission.backlog_s

    def refused_in_front(self) -> Counter[str]:
        """Numbers of requests that were refused by the block since the last call, by tenant."""
        return self._admission.refused()

    def submit(
        self, request: Request, deadline: float | None, callback: Callable[[Answer], None]
    ) -> Work:
        """See Engine. Raises Unavailable (of which QueueFull, and of that Overloaded) at once; a
        request that is invalid is answered so however much there is to do."""
        work = Work(request, deadline, callback)
        if self._lanes.quick(work):
            self._engine.read([work])
        if work.answer is not None:
            self._take(work)
            self._end(work)
            return work
        if (lane := self._lanes.lane(work)) is not None:
            lane.queue.reserve()  # first: who is refused here displaces no others
            try:
                # The caller takes its tensors back; texts and images are objects of their own.
                inputs = {name: array.copy() for name, array in request.inputs.items()}
                work.request = replace(request, inputs=inputs)
                work.lane = lane
                self._take(work)
            except Exception:  # also a lack of memory for the copy
                lane.queue.give_back()
                raise
            lane.queue.put(lambda: self._tokenize_beside(work, lane))
            return work
        self._take(work)
        together: list[Work] | None = getattr(self._own, "together", None)
        if together is not None:
            together.append(work)
        else:
            self._add(self._tokenized([work]))
        return work

    @contextmanager
    def together(self) -> Iterator[None]:
        """See Engine. Short texts are tokenised in one call at the end; and where nothing else is
        computed then, light requests are, by this thread: a lone one waits for no other."""
        self._own.together = []
        try:
            yield
        finally:
            works: list[Work] = self._own.together
            self._own.together = None
            works = self._tokenized(works)
            light = [work for work in works if _tokens(work) <= LIGHT_TOKENS]
            if light and self._compute_here(light):
                works = [work for work in works if _tokens(work) > LIGHT_TOKENS]
            self._add(works)

    def close(self, drain_seconds: float = 0.0) -> None:
        """See Engine; what is left is Unavailable."""
        self._admission.close()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._not_ended, drain_seconds)
        self._end_all(Unavailable(CLOSED))
        self._lanes.close()
        self._thread.join(_LONGEST_MICRO_BATCH_S)
        if self._thread.is_alive():
            _log.error(
                "close: a micro-batch has not ended within %g s; the device hangs, restart the "
                "process",
                _LONGEST_MICRO_BATCH_S,
            )
        self._engine.close()

    def _take(self, work: Work) -> None:
        """Takes a work, and ends those that it displaces: nothing after this may refuse it.
        Unavailable, Overloaded."""
        with self._changed:
            if self._closing:
                raise Unavailable(CLOSED)
            displaced = [] if work.answer is not None else self._admission.take(work)
            self._not_ended.add(work)
        for other in displaced:
            self._end(other, DeadlineExceeded(DISPLACED))

    def _tokenize_beside(self, work: Work, lane: Lane) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._may_read_ahead(lane))
        try:
            self._add(self._tokenized([work], lane.reader()))
        except Exception as error:
            self._end(work, failure(error))

    def _may_read_ahead(self, lane: Lane) -> bool:
        """Whether a lane may read on. A heavy request counts as half a micro-batch: it keeps no
        light one from being read. What other lanes and the submitting thread have read does not
        count, or those would keep this one from reading for as long as they are faster than the
        device."""
        budget = self._engine.settings.max_batch_tokens
        waiting = sum(min(_tokens(work), budget // 2) for work in self._ready if work.lane is lane)
        return waiting < _READ_AHEAD * budget

    def _tokenized(self, works: list[Work], reader: Reader | None = None) -> list[Work]:
        """Tokenises works; returns those that are ready to be computed. The others have ended."""
        wanted = [work for work in works if not self._ended_early(work)]
        ready = self._engine.read(wanted)
        if reader is None:
            with self._reading:
                seconds = self._engine.tokenize(ready)
        else:
            seconds = self._engine.tokenize(ready, reader)
        with self._changed:
            self._tokenize_seconds += seconds
            self._admission.learn(ready)
        for work in wanted:
            if work.answer is not None:
                self._end(work, work.answer)
        self._admission.correct(ready)
        return ready

    def _add(self, works: list[Work]) -> None:
        if works:
            with self._changed:
                for work in works:
                    if not work.ended:
                        self._ready.add(work)
                self._changed.notify_all()

    def _compute_here(self, works: list[Work]) -> bool:
        """Computes and answers works in this thread, unless another computes, or they are more than
        a micro-batch or than some milliseconds' work; returns whether it did."""
        lengths = [len(item.tokens) for work in works for item in work.items]
        tokens = sum(lengths)
        if tokens > self._engine.settings.max_batch_tokens:
            return False
        if self._costs.seconds(tokens, sum_of_squares(lengths)) > _MOST_HERE_S:
            return False
        if not self._computing.acquire(blocking=False):
            return False
        try:
            with self._changed:
                if self._ready:
                    return False
            with self._failing_all():
                self._given = works
                for work in works:
                    work.given = len(work.items)
                self._admission.correct(works)
                self._compute([(work, place) for work in works for place in range(len(work.items))])
                self._finish()
        finally:
            self._computing.release()
        return True

    def _compute_ready(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ready or (self._closing and not self._not_ended)
                )
                if not self._ready:
                    return
            with self._computing, self._failing_all():
                while turn := self._turn():
                    self._compute(turn)
                self._finish()

    @contextmanager
    def _failing_all(self) -> Iterator[None]:
        """Ends all requests where what is within it raises: after a defect none waits for an answer
        that never comes."""
        try:
            yield
        except Exception as error:
            self._run, self._given = self._engine.micro_batches(self._end_computed), []
            self._admission.idle()
            self._end_all(failure(error))

    def _end_all(self, error: FusewireError) -> None:
        with self._changed:
            works = list(self._not_ended)
            self._ready.clear()
        for work in works:
            self._end(work, copy(error))

    def _turn(self) -> list[Member]:
        """The next micro-batch."""
        self._drop_late()
        with self._changed:
            members = self._ready.take(
                time.monotonic(),
                self._admission.slack_s,
                self._costs,
                self._engine.settings.max_batch_tokens,
            )
            changed = dict.fromkeys(work for work, _ in members)
            self._given += [work for work in changed if work.given == len(work.items)]
            self._changed.notify_all()  # there is room to read ahead
        self._admission.correct(changed)
        return members

    def _drop_late(self) -> None:
        """Ends those of the first in the queue that cannot be computed in time any more, until one
        of them can, or none waits."""
        while True:
            with self._changed:
                ready = self._ready.first()
            ended = [work for work in ready if self._ended_early(work)]
            late = [work for work in ready if not work.ended and self._is_late(work)]
            # One is computed in any case: else a prediction that is wrong would never be corrected.
            if len(ended) + len(late) == len(ready):
                late = late[1:]
            for work in late:
                self._end(work, DeadlineExceeded(TOO_LATE))
            ended += late
            with self._changed:
                for work in ended:
                    self._ready.remove(work)
                if len(ended) < len(ready) or not len(self._ready):
                    return

    def _is_late(self, work: Work) -> bool:
        """Whether a work can no longer be computed in time, even alone, as predicted."""
        return work.deadline is not None and work.deadline - time.monotonic() < work.predicted_s

    def _compute(self, members: Sequence[Member]) -> None:
        lengths = [len(work.items[place].tokens) for work, place in members]
        self._admission.begin(lengths)
        self._run.compute(members, self._engine.settings.max_batch_tokens)
        if self._run.counts.micro_batches:  # else it is in flight
            self._tell()

    def _finish(self) -> None:
        self._run.finish()
        self._admission.idle()
        self._tell()
        self._end_computed()

    def _end_computed(self, sequences: int = 0) -> None:
        """Ends works whose last sequence is computed, or that have failed."""
        left = []
        for work in self._given:
            if work.computed or work.answer is not None:
                self._end(work)
            else:
                left.append(work)
        self._given = left

    def _tell(self) -> None:
        counts = self._run.take_counts()
        if counts == Counts():
            return
        with self._changed:
            counts.tokenize_seconds, self._tokenize_seconds = self._tokenize_seconds, 0.0
        self._computed(counts)

    def _ended_early(self, work: Work) -> bool:
        """Ends a request that failed, was cancelled or is late; returns whether it has ended."""
        if work.ended:  # by `close`, say
            return True
        if work.answer is not None:
            self._end(work)
        elif work.cancelled:
            self._end(work, Cancelled(CANCELLED))
        elif work.deadline is not None and time.monotonic() >= work.deadline:
            self._end(work, DeadlineExceeded(TOO_LATE))
        else:
            return False
        return True

    def _end(self, work: Work, answer: Answer | None = None) -> None:
        """Calls back with the answer, or else that of what was computed; once."""
        with self._changed:
            if work.ended:
                return
            work.ended = True
        self._admission.release(work, answered=answer is None and work.answer is None)
        callback, work.callback = work.callback, None  # who has the ticket is in no cycle with it
        try:
            assert callback is not None
            callback(self._engine.reply(work) if answer is None else answer)
        except Exception:
            _log.exception("a callback failed")
        with self._changed:
            self._not_ended.discard(work)
            if self._closing and not self._not_ended:
                self._changed.notify_all()


def _tokens(work: Work) -> int:
    return sum(len(item.tokens) for item in work.items)
