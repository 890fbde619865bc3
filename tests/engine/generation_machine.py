"""A machine that generates, without a model: what admission takes, run by a clock of its own."""

from __future__ import annotations

from fusewire.engine.admission import Admission
from fusewire.engine.costs import CostTable
from fusewire.engine.generation_sequence import GenerationSequence, State
from fusewire.engine.place import Place
from fusewire.errors import Overloaded

STEP_S, TOKEN_S = 0.02, 1e-4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def steps(ratio: float = 1.0) -> CostTable:
    """Of a step, and of a token of a prompt in it."""
    sizes = [16 << power for power in range(6)]
    return CostTable([(n, ratio * (STEP_S + TOKEN_S * n)) for n in sizes])


class Machine:
    """Runs what is taken, step by step, by a clock of its own: a step gives every running sequence
    a token, and lets those in that have a slot and pages, in order."""

    def __init__(self, slots: int = 4, pages: int = 1000, **limits: float) -> None:
        self.clock = Clock()
        self.costs = steps()
        self.ratio = 1.0  # of what steps take to what was measured
        self.slots, self.pages = slots, pages
        self.admission = Admission(
            slots,
            10_000,
            clock=self.clock,
            costs=self.costs,
            pages=pages,
            page_size=16,
            **limits,
        )
        self.waiting: list[tuple[Place, int]] = []  # and how much it generates
        self.running: list[tuple[Place, int]] = []
        self.begun: dict[Place, float] = {}
        self.ended: dict[Place, float] = {}

    def ask(
        self, *, within: float | None, most: int, new: int, tokens=16, priority=0, tenant=""
    ) -> Place:
        deadline = None if within is None else self.clock.now + within
        asked = {"priority": priority, "tenant": tenant}
        place = self.admission.take(1, deadline, tokens=tokens, most_new=most, **asked)
        place.sequence = GenerationSequence([0] * tokens, tokens + most, priority=priority)
        place.begun = tokens
        self.waiting.append((place, new))
        self.waiting.sort(key=lambda each: (each[0].priority, each[0].deadline))
        return place

    def fill(self, within: float, **asked: int) -> list[Place]:
        """Equal ones, until one is refused."""
        places = []
        while True:
            try:
                places.append(self.ask(within=within, most=100, new=50, **asked))
            except Overloaded:
                return places

    def step(self) -> None:
        tokens = going_on = len(self.running)
        self.expire()
        while self.waiting and len(self.running) < self.slots:
            place, new = self.waiting[0]
            if self.held() + self.held_by(place, new) > self.pages:
                break
            del self.waiting[0]
            self.running.append((place, new))
            place.sequence.state = State.RUNNING
            self.begun[place] = self.clock.now
            tokens += int(place.tokens)
        took = self.ratio * steps().seconds(tokens, 0.0)
        self.clock.now += took
        self.costs.observe(tokens, 0.0, took)
        if going_on:
            self.admission.stepped(going_on, took)
        for place, new in self.running:
            place.sequence.token_ids.append(1)
            if place.generated == new:
                place.sequence.state = State.FINISHED
                self.ended[place] = self.clock.now
                self.admission.leave(place, generated=new)
        self.running = [(p, new) for p, new in self.running if p.generated < new]

    def expire(self) -> None:
        late = [
            p for p, _ in self.waiting if p.begin_by is not None and p.begin_by <= self.clock.now
        ]
        self.waiting = [each for each in self.waiting if each[0] not in late]
        for place in late:
            self.admission.leave(place)

    def held(self) -> int:
        return sum(self.held_by(*each) for each in self.running)

    @staticmethod
    def held_by(place: Place, new: int) -> int:
        return -(-(int(place.tokens) + new) // 16)

    def run(self) -> None:
        while self.running or self.waiting:
            self.step()

    def seen(self, most: int = 100, new: int = 50) -> Machine:
        """One has generated half of what it might."""
        self.ask(within=None, most=most, new=new)
        self.run()
        return self
