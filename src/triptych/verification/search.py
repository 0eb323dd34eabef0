"""Breadth-first search over everything a supervisor can come to, with the shortest way to whatever must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from triptych.contract import DegradationState
from triptych.supervisor import FaultRow, SupervisorCore
from triptych.verification.memento import Memento
from triptych.verification.properties import AFTER_RESTART, Edge, Memory, remember, violated
from triptych.verification.world import Action, Request, Vlm, World


class Line(NamedTuple):
    """One step of a way, for people."""

    action: Action
    state: DegradationState
    limit_mps: float
    faults: tuple[str, ...]


class Model(Protocol):
    """What can be searched: hashable nodes, where to begin and what may follow."""

    def starts(self) -> Iterable[Any]:
        """Where a path may begin."""
        ...

    def after(self, node: Any) -> Iterator[tuple[Action, Any, str]]:
        """Each possible action with the node it leads to and the property it breaks, if any."""
        ...

    def line(self, node: Any, action: Action) -> Line:
        """What an action does, in words."""
        ...


@dataclass(frozen=True)
class Finding:
    """A property that does not hold, and the shortest way there."""

    broken: str
    way: tuple[Line, ...]


@dataclass(frozen=True)
class Outcome:
    """What a search saw.

    Attributes:
        states: different ones met.
        transitions: steps taken.
        depth: steps to the farthest state; of a bounded search, steps up to which every way was looked at.
        exhausted: nothing was left to look at.
        finding: the first property broken, if any; the search ends there.
    """

    states: int
    transitions: int
    depth: int
    exhausted: bool
    finding: Finding | None


def search(model: Model, most_transitions: int, progress: Callable[[int], None] = lambda _: None) -> Outcome:
    """Look at every path, shortest first, until all states are known, a property breaks or the bound is reached."""
    came_from: dict[Any, tuple[Any, Action] | None] = dict.fromkeys(model.starts())
    frontier, depth, transitions = list(came_from), 0, 0
    while frontier:
        depth += 1
        further = []
        for node in frontier:
            if transitions >= most_transitions:
                return Outcome(len(came_from), transitions, depth - 1, False, None)
            for action, successor, broken in model.after(node):
                transitions += 1
                if broken:
                    finding = Finding(broken, _way(model, came_from, node, action))
                    return Outcome(len(came_from), transitions, depth, False, finding)
                if successor not in came_from:
                    came_from[successor] = (node, action)
                    further.append(successor)
            progress(len(came_from))
        frontier = further
    return Outcome(len(came_from), transitions, depth - 1, True, None)


def _way(model: Model, came_from: dict[Any, tuple[Any, Action] | None], node: Any, action: Action) -> tuple[Line, ...]:
    lines = [model.line(node, action)]
    while (step := came_from[node]) is not None:
        node, action = step
        lines.append(model.line(node, action))
    return tuple(reversed(lines))


class Alone:
    """One supervisor and every property of :mod:`triptych.verification.properties`.

    Args:
        shipped: the fault table.
        actions: what the surroundings may do.
        core_type: the supervisor.
    """

    def __init__(
        self, shipped: Iterable[FaultRow], actions: tuple[Action, ...], core_type: type[SupervisorCore] = SupervisorCore
    ) -> None:
        self._world = World(shipped, core_type)
        # First without a request: what a refused request leads to is what none leads to.
        self._actions = tuple(sorted(actions, key=lambda action: action.request is not Request.NONE))

    def starts(self) -> Iterable[Any]:
        return (self._world.new, Memory()), (self._world.restarted, AFTER_RESTART)

    def after(self, node: tuple[Memento, Memory]) -> Iterator[tuple[Action, Any, str]]:
        before, memory = node
        world = self._world
        for action in self._actions:
            if action.request is not Request.NONE and not world.accepts(before, action.request):
                continue
            moment, step = world.take(before, action)
            later = remember(memory, action, step, world.core.machine.state)
            yield action, (moment, later), violated(Edge(memory, later, action, step, world.core.latched))

    def line(self, node: tuple[Memento, Memory], action: Action) -> Line:
        _, step = self._world.take(node[0], action)
        return _line(self._world.core, action, step.commands.constraint)


class Pair:
    """Two supervisors with the same surroundings but for the advice, which is nowhere less careful to the second.

    P-03: the second is never allowed more, and all else is equal.
    """

    def __init__(
        self, shipped: Iterable[FaultRow], actions: tuple[Action, ...], core_type: type[SupervisorCore] = SupervisorCore
    ) -> None:
        rows = tuple(shipped)
        self._worlds = World(rows, core_type), World(rows, core_type)
        self._actions = actions

    def starts(self) -> Iterable[Any]:
        one, other = self._worlds
        return ((one.new, other.new), (one.restarted, other.restarted))

    def after(self, node: tuple[Memento, Memento]) -> Iterator[tuple[Action, Any, str]]:
        one, other = self._worlds
        for action in self._actions:
            careless, said = one.take(node[0], action)
            for advice in (Vlm.PROCEED, Vlm.STOP) if action.vlm is Vlm.PROCEED else (action.vlm,):
                careful, heard = other.take(node[1], action._replace(vlm=advice))
                yield action._replace(vlm=advice), (careless, careful), self._compare(said, heard)

    def _compare(self, said: Any, heard: Any) -> str:
        careless, careful = said.commands.constraint, heard.commands.constraint
        if careful.speed_limit_mps > careless.speed_limit_mps:
            return "P-03: more careful advice raised the limit"
        same = careless.state is careful.state and said.accepted is heard.accepted
        if not same or self._worlds[0].core.active != self._worlds[1].core.active:
            return "P-03: advice changed more than the limit"
        return ""

    def line(self, node: tuple[Memento, Memento], action: Action) -> Line:
        _, step = self._worlds[1].take(node[1], action)
        return _line(self._worlds[1].core, action, step.commands.constraint)


def _line(core: SupervisorCore, action: Action, constraint: Any) -> Line:
    return Line(action, core.machine.state, constraint.speed_limit_mps if constraint else float("nan"), core.active)
