"""The whole memory of a :class:`SupervisorCore` as one hashable value, relative to now, and back into the same object.

Two cores with equal mementos behave alike from here on. That is what lets a search meet a state again: times are kept
as distances from now, and a distance is cut off where no threshold can tell it from a greater one. What only a report
reads (counters, sentences, when something is next repeated) is left out.

Every field is named in :data:`RULES`; one that is not stops the search, so that a new memory of the supervisor cannot
be overlooked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, NamedTuple

from triptych.contract import ConfigError, DriverState
from triptych.supervisor.core import SupervisorCore
from triptych.supervisor.faults import FaultLife
from triptych.supervisor.machine import MachineState
from triptych.supervisor.manoeuvre import Manoeuvre

NOW_NS = 1_000_000_000_000
"""Monotonic time of a restored core: every search step begins here."""
STAMP_OFFSET_NS = 1_700_000_000_000_000_000
"""Clock of stamps against the monotonic clock in a restored core."""
QUANTUM_NS = 500_000_000
"""One step of abstract time."""

Memento = tuple[Any, ...]
_Q = QUANTUM_NS
_NEVER_NS = 1 << 62


class Rule(NamedTuple):
    """How a field is kept: ``save(value, now_ns, stamp_ns)`` is hashable, ``load`` makes the field of it.

    Without ``save`` it is not kept; without ``load`` it is not put back either.
    """

    save: Callable[[Any, int, int], Any] | None
    load: Callable[[Any], Any] | None


def between(least_quanta: int, greatest_quanta: int) -> Rule:
    """A monotonic time (``None``: never), as a distance from now held within what matters."""

    def save(value: int | None, now_ns: int, _: int) -> int | None:
        if value is None:
            return None
        if value - now_ns > greatest_quanta * _Q:
            raise ConfigError(f"lies {value - now_ns} ns ahead, more than its rule allows", where="memento")
        return max(value - now_ns, least_quanta * _Q)

    return Rule(save, lambda kept: None if kept is None else NOW_NS + kept)


def since(quanta: int) -> Rule:
    """A time in the past."""
    return between(-quanta, 0)


def fresh(initial: Callable[[], Any]) -> Rule:
    """Decides nothing in the scaled world, and begins anew with every step."""
    return Rule(None, lambda _: initial())


def _save_life(life: FaultLife) -> Memento:
    charge_ns = 0.0 if life.active else life._charge_ns  # an active fault loses its charge when it ends
    return life.active, life.level, life._known, charge_ns, min(life._calm_ns, life._clear_ns)


def load_life(life: FaultLife, kept: Memento) -> None:
    """Put a fault's life back."""
    life.active, life.level, life._known, life._charge_ns, life._calm_ns = kept


def _save_events(value: deque[int], now_ns: int, _: int) -> tuple[int, ...]:
    return tuple(event - now_ns for event in value if now_ns - event < 2 * _Q)[-2:]


def _save_stamp(value: int | None, _: int, stamp_ns: int) -> int | None:
    return None if value is None else min(max(value - stamp_ns, -_Q), 0)


def _save_driver(value: DriverState | None, *_: int) -> DriverState | None:
    return None if value is None else replace(value, stamp_ns=0, sequence_counter=0, crc=0)


def _save_empty(value: deque[Any], *_: int) -> None:
    if value:
        raise ConfigError("messages are waiting: a memento is taken between two ticks", where="memento")


AS_IS, CONSTANT, UNREAD = Rule(None, None), Rule(None, None), Rule(None, None)
"""Kept and put back as it is; the same for ever; read by no decision, so that whatever it says may stay."""
STAMP = Rule(_save_stamp, lambda kept: None if kept is None else NOW_NS + STAMP_OFFSET_NS + kept)
EVENTS = Rule(_save_events, lambda kept: deque((NOW_NS + event for event in kept), maxlen=64))
OFFSET = Rule(lambda value, *_: value is not None, lambda known: STAMP_OFFSET_NS if known else None)
NUMBER = Rule(lambda value, *_: None if math.isnan(value) else value, lambda kept: math.nan if kept is None else kept)
DRIVER = Rule(_save_driver, lambda kept: kept)
EMPTY = Rule(_save_empty, lambda _: deque(maxlen=4096))
MACHINE = Rule(
    lambda m, *_: (m.state, m.waited_ns, m.locked), lambda kept: MachineState(kept[0], "kept", kept[1], kept[2])
)
MANOEUVRE = Rule(lambda m, *_: m.pull_over, lambda pull_over: Manoeuvre(NOW_NS, math.nan, pull_over))
"""Where a manoeuvre began shapes its deceleration alone, which the search does not look at."""

RULES: tuple[tuple[str, Rule], ...] = (
    *((f"*.{name}", CONSTANT) for name in (
        "_tolerance_ns", "_settle_ns", "_spacing_ns", "_late_ns", "_postpone_ns", "_max_age_ns", "_future_ns",
        "_fresh_ns", "_hold_ns", "_window_ns", "_wait_ns", "_grace_ns", "_periods_ns", "_fresh_s", "_max_mps",
        "_max_accel_mps2", "_margin_mps", "_still_mps", "_keep_s", "_limit_s", "_tolerance_s", "tier", "config",
        "_vlm_keys", "_limits_mps", "_caps_mps", "_reactions", "_awaited", "_resting", "_growing", "rows",
        "policy", "_comparing", "_safety_core", "_lidar", "_dispensable",
    )),
    *((f"core.{name}", UNREAD) for name in (
        "_counters", "_sent", "_sent_limit_mps", "_sent_asking", "_previous", "_since_ns", "_demand_reason", "_told",
    )),
    ("core._due_ns", fresh(lambda: [0, _NEVER_NS, _NEVER_NS, _NEVER_NS])),
    # -- monitors whose metric no row of the reduced table watches --
    ("core._channels.*._late._run", UNREAD), ("core._channels.*._sequence.*", UNREAD),
    ("core._channels.*._content.*", UNREAD), ("core._channels.*._heartbeat.*", UNREAD),
    ("core._channels.*._crc.*", UNREAD), ("core._channels.*._future._run", UNREAD),
    ("core._channels.*._foreign.*", UNREAD),
    ("core._channels.*._origin._run", UNREAD), ("core._channels.*._report.*", UNREAD), ("core._driver.crc.*", UNREAD),
    ("core._channels.distilled._said._perplexity._value", AS_IS),
    ("core._channels.*._very_late.*", UNREAD), ("core._channels.*._said.*", UNREAD), ("core._resources.*", UNREAD),
    ("core._compared", UNREAD), ("core._seen.*", UNREAD),  # the policy of this world compares nothing
    ("core._odometry._jumps.*", UNREAD), ("core._loop._late.*", UNREAD), ("*._step_ns", UNREAD), ("*._gap_ns", UNREAD),
    ("core._channels.distilled._invalid.*", UNREAD), ("core._channels.full._invalid.*", UNREAD),
    ("core._channels.distilled._uncertainty.*", UNREAD), ("core._channels.full._uncertainty.*", UNREAD),
    ("core._channels.*._repeated.*", fresh(lambda: None)),  # stamps always advance here: only its start matters
    # -- what decides --
    ("core._inbox", EMPTY), ("core._notes", fresh(lambda: deque(maxlen=64))),
    ("core._machine", MACHINE), ("core._manoeuvre", MANOEUVRE), ("core._driver._state", DRIVER),
    ("core._clock.offset_ns", OFFSET), ("core._started_ns", since(2)), ("core._last_ns", since(0)),
    ("core._judged_ns", since(3)), ("core._loop._last_ns", since(0)), ("*._judge_from_ns", between(0, 1)),
    ("*._next_grant_ns", between(0, 4)), ("*._settled_at_ns", between(0, 2)), ("*._due_ns", between(0, 3)),
    ("*.gate._last_ns", STAMP), ("core._channels.detector._silence._last_ns", since(2)),
    ("*._silence._last_ns", since(1)), ("*._events_ns", EVENTS), ("*._trusted_ns", since(1)),
    ("*._trusted_mps", NUMBER), ("*._still_since_ns", since(1)), ("*._handed_over_since_ns", since(1)),
    *((f"*.{name}", AS_IS) for name in (
        "received", "_known", "advice", "_fresh_once", "_well_once", "_seen", "_value", "news", "_missing", "_own",
        "_demand", "_active", "_lost", "_void", "_blind", "_confirmed", "_reset", "_limit_mps",
    )),
)  # fmt: skip
"""The first pattern that fits a field's path counts."""


def parts(core: SupervisorCore) -> list[tuple[str, Any]]:
    """(path, object) of a core and of everything it is made of, each object once."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    def visit(value: Any, path: str) -> None:
        if isinstance(value, (tuple, list)):
            for number, item in enumerate(value):
                visit(item, f"{path}.{number}")
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(item, f"{path}.{getattr(key, 'key', key)}")
        elif _is_part(value) and id(value) not in seen:
            seen.add(id(value))
            found.append((path, value))
            if not isinstance(value, FaultLife):
                for name in _names(value):
                    visit(getattr(value, name), f"{path}.{name}")

    visit(core, "core")
    return found


def _names(part: Any) -> list[str]:
    return [*getattr(part, "__dict__", ()), *getattr(type(part), "__slots__", ())]


def _is_part(value: Any) -> bool:
    """Whether a value is one of the supervisor's own mutable objects."""
    kind = type(value)
    own = kind.__module__.startswith(("triptych.supervisor", "triptych.contract.e2e")) or isinstance(
        value, SupervisorCore
    )
    frozen = isinstance(value, Enum) or hasattr(kind, "__dataclass_params__") or hasattr(kind, "model_config")
    return own and not frozen and not isinstance(value, type) and not callable(value)


def _holds_parts(value: Any) -> bool:
    """Whether a field is structure: parts, or containers of them, of which the search replaces nothing."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_parts(item) for item in value)
    return _is_part(value)


def rule_of(path: str) -> Rule:
    """The rule of a field.

    Raises:
        ConfigError: there is none.
    """
    for pattern, rule in RULES:
        if fnmatchcase(path, pattern):
            return rule
    raise ConfigError("has no rule", where="memento", field=path, remedy="say in RULES how it is kept")


class Recorder:
    """Takes mementos of one core and puts it back to any of them.

    Args:
        core: the supervisor; nothing else may step it meanwhile.

    Raises:
        ConfigError: a field whose meaning is not known here.
    """

    def __init__(self, core: SupervisorCore) -> None:
        self._lives: list[FaultLife] = []
        self._plain: list[tuple[Any, tuple[str, ...], Callable[[Any], Any]]] = []
        self._special: list[tuple[Any, str, Callable[[Any, int, int], Any], Callable[[Any], Any]]] = []
        self._fresh: list[tuple[Any, str, Callable[[Any], Any]]] = []
        self._canon: dict[Any, Any] = {}
        for path, part in parts(core):
            if isinstance(part, FaultLife):
                self._lives.append(part)
                continue
            plain = []
            for name in _names(part):
                if _holds_parts(getattr(part, name)):
                    continue
                rule = rule_of(f"{path}.{name}")
                if rule is AS_IS:
                    plain.append(name)
                elif rule.save is not None and rule.load is not None:
                    self._special.append((part, name, rule.save, rule.load))
                elif rule.load is not None:
                    self._fresh.append((part, name, rule.load))
            if plain:
                self._plain.append((part, tuple(plain), attrgetter(*plain)))

    def save(self, now_ns: int, now_stamp_ns: int) -> Memento:
        """The core's memory after a tick at these readings of the clocks."""
        special = tuple([save(getattr(part, name), now_ns, now_stamp_ns) for part, name, save, _ in self._special])
        plain = tuple([get(part) for part, _, get in self._plain])
        lives = tuple([_save_life(life) for life in self._lives])
        share = self._canon.setdefault
        return share(special, special), share(plain, plain), share(lives, lives)

    def load(self, memento: Memento) -> None:
        """Put the core back, its clocks at :data:`NOW_NS` and :data:`STAMP_OFFSET_NS`."""
        special, plain, lives = memento
        for (part, name, _, load), kept in zip(self._special, special):
            setattr(part, name, load(kept))
        for (part, names, _), kept in zip(self._plain, plain):
            if len(names) == 1:
                setattr(part, names[0], kept)
            else:
                for name, value in zip(names, kept):
                    setattr(part, name, value)
        for life, kept in zip(self._lives, lives):
            load_life(life, kept)
        for part, name, load in self._fresh:
            setattr(part, name, load(None))
