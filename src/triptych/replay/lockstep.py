"""A recording through the whole stack on a virtual clock: no DDS, no threads, the same decisions on every run.

The loop is a discrete event simulation around the very objects that drive: :class:`triptych.tiers.TierCore` and
:class:`triptych.supervisor.core.SupervisorCore`. What a real machine would measure is modelled:

* inference runs for real, but takes the manifest's nominal time (``latency.nominal_ms``), or
  :data:`triptych.virtual.NOMINAL_MS`;
* a camera frame reaches its tier :data:`CAMERA_TRANSPORT_NS` after its stamp, every other message its receiver
  :data:`MESSAGE_TRANSPORT_NS` after it was sent;
* heartbeats come every 100 ms, the supervisor ticks every ``tick_period_s``;
* what the recording does not have is made up (:mod:`triptych.replay.synthesis`).

So a lockstep run says what the stack *decides*, not how fast this machine is; no measured time is in its decisions.

``decisions.jsonl``: one canonical JSON object per line (sorted keys, no spaces). The first line names format, data
hash, engines and parameters; then ``result``, ``state``, ``fault``, ``constraint`` lines in the order they were
published, and ``end`` with the counts. Equal inputs give equal bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2

from triptych.contract import (
    BUDGETS,
    Budget,
    DriverState,
    EngineError,
    Frame,
    InputError,
    MotionConstraint,
    Odometry,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    TriptychError,
    VirtualClock,
    crc_ok,
)
from triptych.engines.protocol import Engine, EngineOutput
from triptych.replay import record as rec
from triptych.replay.messages import NS
from triptych.replay.player import Due, Options, schedule
from triptych.replay.recording import Recording
from triptych.replay.synthesis import SPEED_MPS
from triptych.replay.writer import BagWriter
from triptych.supervisor.config import SupervisorConfig, supervisor_config
from triptych.supervisor.core import SupervisorCore
from triptych.supervisor.faults import FaultRow
from triptych.supervisor.policy import DEFAULT_POLICY, Policy
from triptych.supervisor.records import Commands
from triptych.tiers.core import TierCore
from triptych.tiers.heartbeat import heartbeat
from triptych.tiers.monitors import InputConfig, InputWatch
from triptych.virtual import (
    CAMERA_TRANSPORT_NS,
    MESSAGE_TRANSPORT_NS,
    STATUS_PERIOD_NS,
    Events,
    infer,
    modelled_ms,
    tier_core,
)

DECISIONS_VERSION = 1
SAMPLE_FRAMES = 12
"""Pictures kept for the report, spread evenly."""
JPEG_QUALITY = 85
_RESULT_TOPIC = {tier: f"/{tier.key}/result" for tier in Tier}
_STATUS_TOPIC = {tier: f"/{tier.key}/status" for tier in Tier}
STATE_TOPIC = "/supervisor/state"


def run_lockstep(
    recording: Recording,
    engines: Mapping[Tier, Engine],
    *,
    faults: Sequence[FaultRow],
    policy: Policy = DEFAULT_POLICY,
    config: SupervisorConfig | None = None,
    budgets: Mapping[Tier, Budget] = BUDGETS,
    options: Options | None = None,
    nominal_ms: Mapping[Tier, float] | None = None,
    inputs: Mapping[Tier, InputConfig] | None = None,
    out: Path | str | None = None,
    camera_in_bag: bool = True,
    question: str = "",
    progress: Callable[[float, float], None] | None = None,
) -> rec.RunRecord:
    """Play ``recording`` through the tiers that have an engine.

    Args:
        engines: loaded engines; each must pass its golden frame. Load them with one thread: results of several threads
            may differ in the last bit.
        faults: the fault table, from ``triptych.supervisor.faults.load_faults``.
        policy: how far each tier's result may go, from ``triptych.supervisor.policy.load_policy``.
        config: parameters of the supervisor; a VLM tier without an engine should be marked as not expected there.
        options: start and duration apply. ``rate`` has no effect in lockstep (noted in ``meta["warnings"]``); ``loop``
            is refused, because it would never end.
        nominal_ms: overrides the modelled inference time of a tier.
        inputs: limits of the input monitors of the tiers that have some; None: nobody looks at the pictures.
        out: folder for ``decisions.jsonl``, ``record.jsonl`` and the bag ``results``; None writes nothing. Files get
            their names when they are complete.
        camera_in_bag: put the frames into the bag as JPEG, so that Foxglove and RViz show them under the results.
        question: put to the full tier instead of the standing question.
        progress: called with (seconds played, seconds in all).

    Returns:
        The record; ``meta["decisions_sha256"]`` is the hash of ``decisions.jsonl``, ``meta["identity"]`` what the
        decisions follow from: data, configuration, engines and the part that was played.

    Raises:
        EngineError: an engine fails its golden frame.
        InputError: the recording or an option cannot be used.
        TriptychError: ``out`` cannot be written.
    """
    options = options or Options()
    if options.loop:
        raise InputError(
            "would never end in lockstep", field="loop", value=True, remedy="leave it out or drop --lockstep"
        )
    for tier, engine in sorted(engines.items()):
        _check_golden(tier, engine)
    # A recording obeys nobody, so there is no last hop to the vehicle; nor are lidar scans read from it.
    absent = {"safety_core_expected": False, "lidar_expected": False}
    config = (config or supervisor_config({})).model_copy(update=absent)
    run = _Run(recording, engines, faults, policy, config, budgets, options, nominal_ms or {}, inputs or {})
    run.question = question
    with _Outputs(out, camera_in_bag) as outputs:
        run.execute(outputs, progress)
        run.record.meta["decisions_sha256"] = outputs.decisions_sha256()
        outputs.finish(run.record)
    return run.record


def _check_golden(tier: Tier, engine: Engine) -> None:
    try:
        golden = engine.golden()
        output = engine.infer([golden] * engine.frames_wanted, getattr(engine, "golden_question", ""))
        problem = engine.golden_ok(output)
    except TriptychError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise EngineError(
            f"fails its golden frame: {problem}",
            where=engine.id,
            field=tier.key,
            remedy="check it with 'triptych engines check'",
        )


@dataclass(slots=True)
class _Lane:
    """One tier of the run: its core, its engine and what it has said so far."""

    tier: Tier
    engine: Engine
    core: TierCore
    infer_ns: int
    watch: InputWatch | None
    status_sequence: int = 0


ARRIVAL, COMPLETION, HEARTBEAT, MESSAGE, TICK = range(5)
"""Order of what happens at equal times."""


class _Run:
    """The event loop. Monotonic time 0 is the first item of the recording."""

    def __init__(
        self,
        recording: Recording,
        engines: Mapping[Tier, Engine],
        faults: Sequence[FaultRow],
        policy: Policy,
        config: SupervisorConfig,
        budgets: Mapping[Tier, Budget],
        options: Options,
        nominal_ms: Mapping[Tier, float],
        inputs: Mapping[Tier, InputConfig],
    ) -> None:
        self.recording, self.config, self.budgets, self.options = recording, config, budgets, options
        self.supervisor = SupervisorCore(config, faults, budgets, policy=policy)
        self.policy, self.faults, self.inputs = policy, faults, inputs
        self.question = ""
        self.lanes = [
            _Lane(
                tier,
                engine,
                tier_core(tier, engine, budgets[tier]),
                round(modelled_ms(tier, engine, nominal_ms) * 1e6),
                InputWatch(inputs[tier]) if tier in inputs else None,
            )
            for tier, engine in sorted(engines.items())
        ]
        self.record = rec.RunRecord()
        self._said = rec.Said(self.record)
        self.clock = VirtualClock()
        self._events = Events()
        self._at = self._events.at
        self._tick_ns = round(config.tick_period_s * NS)
        self._end_ns: int | None = None
        self._frames = 0
        self._size = (0, 0)
        self._stamps: tuple[int, int] = (0, 0)

    def execute(self, outputs: _Outputs, progress: Callable[[float, float], None] | None) -> None:
        items = schedule(self.recording, Options(1.0, self.options.start_s, self.options.duration_s))
        first = next(items)
        start_ns = first.item.t_ns
        self.clock = VirtualClock(start_ns)
        self._outputs = outputs
        total_s = self._total_s()
        self._sample_every_ns = round(total_s * NS / SAMPLE_FRAMES)
        self._sample_due_ns = 0
        head = self._head()
        self._fill_meta(start_ns, head)
        outputs.decide(head)
        for lane in self.lanes:
            lane.core.start(0, start_ns)
        self._at(0, HEARTBEAT, self._heartbeat)
        self._at(0, TICK, self._tick)
        self._schedule_item(first, items)
        shown_s = -1.0
        while self._events:
            due_ns = min([self._events.next_ns, *self._deadlines()])
            if self._end_ns is not None and due_ns > self._end_ns:
                break
            self.clock.advance_to(due_ns)
            self._poll()
            self._events.run_due(due_ns)
            self._take_jobs()
            if progress and due_ns / NS >= shown_s + 0.1:
                shown_s = due_ns / NS
                progress(min(shown_s, total_s), total_s)
        self._fill_end()
        if progress:
            progress(total_s, total_s)

    def _deadlines(self) -> Iterator[int]:
        for lane in self.lanes:
            due_ns = lane.core.next_event_ns()
            if due_ns is not None:
                yield max(due_ns, self.clock.monotonic_ns())

    def _poll(self) -> None:
        now_ns, stamp_ns = self.clock.monotonic_ns(), self.clock.stamp_ns()
        for lane in self.lanes:
            self._publish(lane, lane.core.poll(now_ns, stamp_ns))

    def _take_jobs(self) -> None:
        now_ns = self.clock.monotonic_ns()
        for lane in self.lanes:
            frames = lane.core.take(now_ns)
            if frames is not None:
                question = self.question if lane.tier is Tier.FULL else ""
                outcome = infer(lane.engine, frames, question, lane.infer_ns)
                self._at(now_ns + lane.infer_ns, COMPLETION, partial(self._complete, lane, outcome, frames[-1]))

    # -- what happens --------------------------------------------------------------------------------------------------

    def _schedule_item(self, due: Due, items: Iterator[Due]) -> None:
        """Queue one item's arrival; its handling queues the next one, so that frames are decoded one at a time."""

        def sent() -> None:
            self._send(due)
            following = next(items, None)
            if following is None:
                # Long enough for the last frame's answer by tier 1.
                self._end_ns = due.after_ns + CAMERA_TRANSPORT_NS + round(self.budgets[Tier.DETECTOR].budget_s * NS)
            else:
                self._schedule_item(following, items)

        self._at(due.after_ns, ARRIVAL, sent)

    def _send(self, due: Due) -> None:
        value = due.item.value
        if isinstance(value, Frame):
            self._keep_sample(due, value)
            self._at(due.after_ns + CAMERA_TRANSPORT_NS, ARRIVAL, lambda: self._offer(value))
        elif isinstance(value, Odometry):
            self._at(due.after_ns + MESSAGE_TRANSPORT_NS, MESSAGE, lambda: self._odometry(value))
        else:
            self._at(due.after_ns + MESSAGE_TRANSPORT_NS, MESSAGE, lambda: self._driver(value))

    def _offer(self, frame: Frame) -> None:
        now_ns, stamp_ns = self.clock.monotonic_ns(), self.clock.stamp_ns()
        received = dataclasses.replace(frame, received_ns=stamp_ns, received_monotonic_ns=now_ns)
        for lane in self.lanes:
            lane.core.offer(received, now_ns, stamp_ns)

    def _keep_sample(self, due: Due, frame: Frame) -> None:
        self._frames += 1
        self._size = (frame.width, frame.height)
        self._stamps = (self._stamps[0] or frame.stamp_ns, frame.stamp_ns)
        wanted = due.after_ns >= self._sample_due_ns
        if not (wanted or self._outputs.wants_camera):
            return
        jpeg = cv2.imencode(".jpg", frame.image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
        self._outputs.camera(jpeg, frame, self.clock.stamp_ns())
        if wanted:
            self._sample_due_ns = due.after_ns + self._sample_every_ns
            self.record.add(rec.SampleFrame(self.clock.stamp_ns(), frame.stamp_ns, frame.width, frame.height, jpeg))

    def _complete(self, lane: _Lane, outcome: EngineOutput | BaseException, frame: Frame) -> None:
        now_ns = self.clock.monotonic_ns()
        self._publish(lane, lane.core.finish(outcome, now_ns, self.clock.stamp_ns()))
        if lane.watch is not None:
            lane.core.note_picture(lane.watch.look(frame.image), now_ns)

    def _publish(self, lane: _Lane, result: TierResult | None) -> None:
        if result is None:
            return
        self._outputs.decide({"kind": "result", **rec.to_plain(result)})
        arrival_ns = self.clock.monotonic_ns() + MESSAGE_TRANSPORT_NS
        self._at(arrival_ns, MESSAGE, lambda: self._receive(result))

    def _receive(self, result: TierResult) -> None:
        stamp_ns = self.clock.stamp_ns()
        self.supervisor.on_result(result, self.clock.monotonic_ns(), crc_ok(result))
        self.record.add(rec.Received(stamp_ns, result))
        self._outputs.bag_record(_RESULT_TOPIC[result.tier], result, stamp_ns)

    def _odometry(self, odometry: Odometry) -> None:
        self.supervisor.on_odometry(odometry, self.clock.monotonic_ns())
        self.record.add(rec.OdometryRecord(self.clock.stamp_ns(), odometry))
        self._outputs.bag_record("/odometry", odometry, self.clock.stamp_ns())

    def _driver(self, driver: DriverState) -> None:
        self.supervisor.on_driver(driver, self.clock.monotonic_ns(), crc_ok(driver))
        self.record.add(rec.DriverRecord(self.clock.stamp_ns(), driver))
        self._outputs.bag_record("/driver/state", driver, self.clock.stamp_ns())

    def _heartbeat(self) -> None:
        now_ns, stamp_ns = self.clock.monotonic_ns(), self.clock.stamp_ns()
        for lane in self.lanes:
            status = _status(lane, now_ns, stamp_ns)
            self._at(now_ns + MESSAGE_TRANSPORT_NS, MESSAGE, partial(self._status, status))
        self._at(now_ns + STATUS_PERIOD_NS, HEARTBEAT, self._heartbeat)

    def _status(self, status: TierStatus) -> None:
        stamp_ns = self.clock.stamp_ns()
        self.supervisor.on_status(status, self.clock.monotonic_ns(), crc_ok(status))
        self.record.add(rec.StatusRecord(stamp_ns, status))
        self._outputs.bag_record(_STATUS_TOPIC[status.tier], status, stamp_ns)

    def _tick(self) -> None:
        now_ns = self.clock.monotonic_ns()
        self._obey(self.supervisor.step(now_ns, self.clock.stamp_ns()))
        self._at(now_ns + self._tick_ns, TICK, self._tick)

    def _obey(self, commands: Commands) -> None:
        stamp_ns = self.clock.stamp_ns()
        for change in commands.transitions:
            self._outputs.decide({**rec.to_plain(change), "kind": change.kind})
        if commands.constraint is not None:
            self._constraint(commands.constraint, stamp_ns)
        if commands.state is not None:
            self._outputs.bag_record(STATE_TOPIC, commands.state, stamp_ns)
        self._said.add(stamp_ns, commands.state, commands.verdicts or ())

    def _constraint(self, constraint: MotionConstraint, stamp_ns: int) -> None:
        self._outputs.decide({"kind": "constraint", **rec.to_plain(constraint)})
        self._outputs.bag_record("/supervisor/constraint", constraint, stamp_ns)
        self.record.add(rec.ConstraintRecord(stamp_ns, constraint))

    # -- what is said about the run ------------------------------------------------------------------------------------

    def _total_s(self) -> float:
        length_s = max(0.0, self.recording.info.duration_s - self.options.start_s)
        return length_s if self.options.duration_s is None else min(length_s, self.options.duration_s)

    def _head(self) -> dict[str, Any]:
        return {
            "kind": "lockstep",
            "format_version": DECISIONS_VERSION,
            "data": self.recording.data_hash(),
            "start_s": self.options.start_s,
            "duration_s": self.options.duration_s,
            "topics": self.recording.chosen,
            "synthesised": list(self.recording.missing),
            "budgets": {t.key: rec.to_plain(b) for t, b in sorted(self.budgets.items())},
            "supervisor": self.config.model_dump(),
            "inputs": {tier.key: config.model_dump() for tier, config in sorted(self.inputs.items())},
            "faults": [rec.to_plain(f.model_dump() if hasattr(f, "model_dump") else f) for f in self.faults],
            "policy": [row.model_dump() for row in self.policy.rows],
            "engines": {
                lane.tier.key: {
                    "id": lane.engine.id,
                    "version": lane.engine.version,
                    "modelled_ms": lane.infer_ns / 1e6,
                    "question": self.question if lane.tier is Tier.FULL else "",
                }
                for lane in self.lanes
            },
        }

    def _identity(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """What must agree for two runs to decide alike, in hashes where the values would be long."""
        config = ("faults", "policy", "supervisor", "inputs", "budgets")
        return {
            "data": head["data"],
            "config": {name: _sha256(head[name]) for name in config},
            "engines": {
                lane.tier.key: {**head["engines"][lane.tier.key], "sha256": _engine_sha256(lane.engine)}
                for lane in self.lanes
            },
            "played": {name: head[name] for name in ("start_s", "duration_s", "topics", "synthesised")},
        }

    def _fill_meta(self, start_ns: int, head: Mapping[str, Any]) -> None:
        notes = list(self.recording.warnings)
        if self.recording.missing:
            made_up = {"odometry": f"a constant speed of {SPEED_MPS:g} m/s", "driver": "an attentive driver"}
            notes.append(
                f"the recording has no {' and no '.join(self.recording.missing)}: "
                f"{' and '.join(made_up[r] for r in self.recording.missing)} is assumed"
            )
        if self.options.rate != 1.0:
            notes.append("rate has no effect in lockstep: the clock is virtual")
        self._notes = notes
        self.record.meta.update(
            mode="lockstep",
            input=str(self.recording.path),
            data_hash=head["data"],
            identity=self._identity(head),
            topics=dict(self.recording.chosen),
            synthesised=list(self.recording.missing),
            tiers=[lane.tier.key for lane in self.lanes],
            budgets={t.key: rec.to_plain(b) for t, b in sorted(self.budgets.items())},
            modelled_ms={lane.tier.key: lane.infer_ns / 1e6 for lane in self.lanes},
            started_ns=start_ns,
            warnings=notes,
        )

    def _fill_end(self) -> None:
        rate = 0.0
        if self._frames > 1 and self._stamps[1] > self._stamps[0]:
            rate = (self._frames - 1) * NS / (self._stamps[1] - self._stamps[0])
        warnings = [*self._notes, *(w for w in self.recording.warnings if w not in self._notes)]
        self.record.meta.update(
            ended_ns=self.clock.stamp_ns(),
            camera={"width": self._size[0], "height": self._size[1], "frames": self._frames, "rate_hz": rate},
            warnings=warnings,
        )
        self._outputs.decide(
            {
                "kind": "end",
                "frames": self._frames,
                "results": {lane.tier.key: rec.to_plain(lane.core.counters()) for lane in self.lanes},
                "state": self.supervisor.machine.state,
            }
        )


def _sha256(value: Any) -> str:
    return hashlib.sha256(rec.canonical_json(value)).hexdigest()


def _engine_sha256(engine: Engine) -> str:
    """Of the manifest, which holds the hashes of the engine's files; without one of what the engine calls itself."""
    manifest = getattr(engine, "manifest", None)
    return _sha256(manifest.model_dump(mode="json") if manifest is not None else [engine.id, engine.version])


def _status(lane: _Lane, now_ns: int, stamp_ns: int) -> TierStatus:
    lane.status_sequence += 1
    fault, count = lane.core.fault(now_ns), lane.core.counters()
    return heartbeat(lane.tier, TierState.ACTIVE, fault, lane.engine, count, stamp_ns, lane.status_sequence)


class _Outputs:
    """The files of a run; without a folder only the hash of the decisions is kept.

    On an exception nothing gets its name; on Ctrl-C neither: half a lockstep run is not a result.
    """

    def __init__(self, out: Path | str | None, camera_in_bag: bool) -> None:
        self._folder = Path(out) if out is not None else None
        self._hash = hashlib.sha256()
        self._bag: BagWriter | None = None
        self._part: Path | None = None
        self.wants_camera = camera_in_bag and self._folder is not None
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._part = self._folder / "decisions.jsonl.part"
            self._file = self._part.open("wb")
        except OSError as error:
            raise self._failure(error) from error
        self._bag = BagWriter(self._folder / "results", overwrite=True, latched=[STATE_TOPIC])

    def _failure(self, error: OSError) -> TriptychError:
        return TriptychError(
            f"cannot be written: {error.strerror}", where=self._folder, remedy="check permissions and free space"
        )

    def decide(self, line: Mapping[str, Any]) -> None:
        data = rec.canonical_json(line) + b"\n"
        self._hash.update(data)
        if self._part is not None:
            try:
                self._file.write(data)
            except OSError as error:
                raise self._failure(error) from error

    def bag_record(self, topic: str, record: Any, t_ns: int) -> None:
        if self._bag is not None:
            self._bag.write_record(topic, record, t_ns)

    def camera(self, jpeg: bytes, frame: Frame, t_ns: int) -> None:
        if self.wants_camera and self._bag is not None:
            self._bag.write_jpeg("/camera/image_raw/compressed", jpeg, frame.stamp_ns, frame.frame_id, t_ns)

    def decisions_sha256(self) -> str:
        return self._hash.hexdigest()

    def finish(self, record: rec.RunRecord) -> None:
        """Give every file its name."""
        if self._folder is None or self._part is None or self._bag is None:
            return
        try:
            self._file.close()
            record.save(self._folder / "record.jsonl")
            self._bag.close()
            self._part.replace(self._folder / "decisions.jsonl")
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._part is None:
            return
        with suppress(OSError):  # what it still holds goes anyway, and the first error is the one to report
            self._file.close()
        self._part.unlink(missing_ok=True)
        if self._bag is not None:
            self._bag.abort()
