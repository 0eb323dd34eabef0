#include "safety_core.h"

/* Wider than any sender means: what lies outside is not a measurement. Keeps all sums below within 32 bits. */
#define SPEED_RANGE_MMPS 100000
#define ACCELERATION_RANGE_MMPS2 50000
/* The longest step of time that anything is extrapolated over. */
#define STEP_MAX_MS 1000u

const tsc_limits TSC_DEFAULTS = {
    .supervisor_timeout_ms = 150u,
    .vehicle_timeout_ms = 300u,
    .speed_max_mmps = 40000,
    .degraded_speed_mmps = 12500,
    .deceleration_max_mmps2 = 4000,
    .stop_deceleration_mmps2 = 3000,
    .slowing_mmps2 = 1000,
    .slack_mmps = 1500,
    .tolerance_mmps = 1000,
    .acceleration_max_mmps2 = 12000,
    .speed_noise_mmps = 500,
    .trend_max_mmps = 1500,
    .trend_window_ms = 500u,
    .standstill_mmps = 100,
    .confirmations = 3u,
};

static int32_t smaller(int32_t a, int32_t b) { return (a < b) ? a : b; }

static int32_t greater(int32_t a, int32_t b) { return (a > b) ? a : b; }

static int32_t magnitude(int32_t a) { return (a < 0) ? -a : a; }

static bool within(int32_t value, int32_t low, int32_t high) { return (value >= low) && (value <= high); }

static uint32_t since(uint32_t now_ms, uint32_t then_ms) {
    const uint32_t elapsed_ms = now_ms - then_ms;
    return (elapsed_ms < STEP_MAX_MS) ? elapsed_ms : STEP_MAX_MS;
}

static uint32_t counted(uint32_t in_a_row, bool suspicious, uint32_t enough) {
    uint32_t count = 0u;
    if (suspicious) {
        count = (in_a_row < enough) ? (in_a_row + 1u) : enough;
    }
    return count;
}

uint32_t tsc_crc(const uint32_t *words, uint32_t count) {
    uint32_t crc = 0xFFFFFFFFu;
    for (uint32_t word = 0u; word < count; word++) {
        crc ^= words[word]; /* little-endian: the lowest byte goes first, and bits go lowest first */
        for (uint32_t bit = 0u; bit < 32u; bit++) {
            crc = ((crc & 1u) != 0u) ? ((crc >> 1) ^ 0xEDB88320u) : (crc >> 1);
        }
    }
    return ~crc;
}

void tsc_seal(uint32_t *words, uint32_t count) { words[count - 1u] = tsc_crc(words, count - 1u); }

bool tsc_limits_ok(const tsc_limits *l) {
    const uint32_t longest_ms = STEP_MAX_MS;
    bool ok = (l->supervisor_timeout_ms > 0u) && (l->supervisor_timeout_ms < longest_ms);
    ok = ok && (l->vehicle_timeout_ms > 0u) && (l->vehicle_timeout_ms < longest_ms);
    ok = ok && within(l->speed_max_mmps, 1, SPEED_RANGE_MMPS);
    ok = ok && within(l->degraded_speed_mmps, 1, l->speed_max_mmps);
    ok = ok && within(l->deceleration_max_mmps2, 1, ACCELERATION_RANGE_MMPS2);
    ok = ok && within(l->stop_deceleration_mmps2, 1, l->deceleration_max_mmps2);
    ok = ok && within(l->slowing_mmps2, 1, l->stop_deceleration_mmps2);
    ok = ok && within(l->slack_mmps, 1, SPEED_RANGE_MMPS) && within(l->tolerance_mmps, 1, SPEED_RANGE_MMPS);
    ok = ok && within(l->acceleration_max_mmps2, 1, ACCELERATION_RANGE_MMPS2);
    ok = ok && within(l->speed_noise_mmps, 1, SPEED_RANGE_MMPS) && within(l->trend_max_mmps, 1, SPEED_RANGE_MMPS);
    ok = ok && (l->trend_window_ms <= longest_ms) && within(l->standstill_mmps, 1, SPEED_RANGE_MMPS);
    return ok && (l->confirmations > 0u);
}

/* Whole, and either newer than the last one or from a sender that was silent and may have begun anew. */
static bool is_new(const uint32_t *words, uint32_t count, const uint32_t *last, bool heard, bool silent) {
    if (words[count - 1u] != tsc_crc(words, count - 1u)) {
        return false;
    }
    const uint32_t ahead = words[TSC_COUNTER] - last[TSC_COUNTER];
    return (!heard) || ((ahead != 0u) && (silent || (ahead < 0x80000000u)));
}

static bool constraint_possible(const tsc_limits *l, const uint32_t *words) {
    return within((int32_t)words[TSC_LIMIT], 0, l->speed_max_mmps) &&
           within((int32_t)words[TSC_DECELERATION], 1, l->deceleration_max_mmps2) &&
           (words[TSC_STATE] <= (uint32_t)TSC_MANUAL) && (words[TSC_FLAGS] <= (uint32_t)TSC_ALL_FLAGS);
}

static bool motion_possible(const uint32_t *words) {
    return within((int32_t)words[TSC_SPEED], -SPEED_RANGE_MMPS, SPEED_RANGE_MMPS) &&
           within((int32_t)words[TSC_ACCELERATION], -ACCELERATION_RANGE_MMPS2, ACCELERATION_RANGE_MMPS2) &&
           (words[TSC_DRIVER] <= 1u);
}

static bool in_manoeuvre(uint32_t state) { return (state == (uint32_t)TSC_L1) || (state == (uint32_t)TSC_MRC); }

static bool standing(const tsc_core *core, const tsc_limits *l) { return core->speed_mmps <= l->standstill_mmps; }

/* Take a new constraint; returns what it is guilty of. */
static uint32_t take_constraint(tsc_core *core, const tsc_limits *l, const uint32_t *words, uint32_t now_ms) {
    const uint32_t before = core->constraint[TSC_STATE];
    const uint32_t state = words[TSC_STATE];
    const bool may_move = (state != (uint32_t)TSC_INITIALISING) && !in_manoeuvre(state);
    const bool escapes = core->constraint_heard && in_manoeuvre(before) && (state != (uint32_t)TSC_MANUAL) && may_move &&
                         !standing(core, l);
    const bool contradicts = (!may_move) && (words[TSC_LIMIT] != 0u);
    if (!core->constraint_heard) {
        core->resets = words[TSC_RESETS]; /* those before our time mean nothing to us */
    }
    for (uint32_t i = 0u; i < (uint32_t)TSC_CONSTRAINT_WORDS; i++) {
        core->constraint[i] = words[i];
    }
    core->constraint_heard = true;
    core->constraint_ms = now_ms;
    return (escapes || contradicts) ? (uint32_t)TSC_FORBIDDEN : 0u;
}

/* Follow the speed no faster than a vehicle changes it. */
static void follow_speed(tsc_core *core, const tsc_limits *l, int32_t measured_mmps, int32_t elapsed_ms) {
    const int32_t reach_mmps = (l->acceleration_max_mmps2 * elapsed_ms) / 1000;
    const bool above = measured_mmps > (core->speed_mmps + reach_mmps + l->speed_noise_mmps);
    const bool below = measured_mmps < (core->speed_mmps - reach_mmps - l->speed_noise_mmps);
    core->jumps = counted(core->jumps, above || below, l->confirmations);
    if (above) {
        core->speed_mmps += reach_mmps;
    } else if (below) {
        core->speed_mmps -= reach_mmps;
    } else {
        core->speed_mmps = measured_mmps;
    }
}

/* Compare the change of speed over a window with the acceleration summed up in it. */
static void follow_trend(tsc_core *core, const tsc_limits *l, const uint32_t *words, int32_t elapsed_ms, uint32_t now_ms) {
    const int32_t speed_mmps = (int32_t)words[TSC_SPEED];
    core->integral_um_ps += (int32_t)words[TSC_ACCELERATION] * elapsed_ms;
    if ((now_ms - core->window_ms) >= l->trend_window_ms) {
        const int32_t unexplained = (speed_mmps - core->window_mmps) - (core->integral_um_ps / 1000);
        core->contradictions = counted(core->contradictions, magnitude(unexplained) > l->trend_max_mmps, 2u);
        core->window_ms = now_ms;
        core->window_mmps = speed_mmps;
        core->integral_um_ps = 0;
    }
}

/* Take a new record of the vehicle's motion. */
static void take_motion(tsc_core *core, const tsc_limits *l, const uint32_t *words, uint32_t now_ms) {
    const int32_t measured_mmps = magnitude((int32_t)words[TSC_SPEED]);
    if (!core->motion_heard) {
        core->speed_mmps = measured_mmps;
        core->ceiling_mmps = SPEED_RANGE_MMPS;
        core->window_ms = now_ms;
        core->window_mmps = (int32_t)words[TSC_SPEED];
    } else {
        const int32_t elapsed_ms = (int32_t)since(now_ms, core->motion_ms);
        follow_speed(core, l, measured_mmps, elapsed_ms);
        if (l->trend_window_ms > 0u) {
            follow_trend(core, l, words, elapsed_ms, now_ms);
        }
    }
    core->excesses = counted(core->excesses, core->speed_mmps > core->ceiling_mmps, l->confirmations);
    for (uint32_t i = 0u; i < (uint32_t)TSC_MOTION_WORDS; i++) {
        core->motion[i] = words[i];
    }
    core->motion_heard = true;
    core->motion_ms = now_ms;
}

/* The limit that holds now: the supervisor's, in degraded states never above the envelope. */
static int32_t limit_of(const tsc_core *core, const tsc_limits *l) {
    const uint32_t state = core->constraint[TSC_STATE];
    const int32_t asked_mmps = (int32_t)core->constraint[TSC_LIMIT];
    const bool degraded = (state >= (uint32_t)TSC_L3) && (state <= (uint32_t)TSC_L1);
    return degraded ? smaller(asked_mmps, l->degraded_speed_mmps) : asked_mmps;
}

/* Lower the ceiling to the limit, but no faster than the vehicle has to brake; raise it at once. */
static void move_ceiling(tsc_core *core, const tsc_limits *l, int32_t limit_mmps, int32_t elapsed_ms) {
    const int32_t kept_mmps = limit_mmps + l->tolerance_mmps;
    const int32_t braking_mmps = smaller(core->ceiling_mmps, core->speed_mmps + l->slack_mmps);
    core->ceiling_mmps = greater(kept_mmps, braking_mmps - ((l->slowing_mmps2 * elapsed_ms) / 1000));
}

/* Forget what was suspected; for a driver, who may do what automation may not. */
static void begin_anew(tsc_core *core) {
    core->ceiling_mmps = SPEED_RANGE_MMPS;
    core->excesses = 0u;
}

static void obey_reset(tsc_core *core, const tsc_limits *l, uint32_t present) {
    if (core->constraint[TSC_RESETS] != core->resets) {
        core->resets = core->constraint[TSC_RESETS]; /* one that comes too early is lost: it was meant for another moment */
        if ((present == 0u) && standing(core, l)) {
            core->causes = 0u;
        }
    }
}

static tsc_command command_of(tsc_core *core, const tsc_limits *l, bool waiting, bool driver, uint32_t present) {
    tsc_command out = {{0u}};
    const bool vehicle_known = (present & (uint32_t)TSC_VEHICLE_SILENT) == 0u;
    const bool supervisor_known = (present & (uint32_t)TSC_SUPERVISOR_SILENT) == 0u;
    out.words[TSC_COUNTER] = ++core->counter;
    out.words[TSC_DECELERATION] = (uint32_t)l->stop_deceleration_mmps2;
    if (driver) {
        out.words[TSC_LIMIT] = (uint32_t)l->speed_max_mmps;
        out.words[TSC_STATE] = (uint32_t)TSC_MANUAL;
        out.words[TSC_RESETS] = core->causes;
    } else if (waiting) {
        out.words[TSC_STATE] = (uint32_t)TSC_INITIALISING;
        out.words[TSC_RESETS] = (uint32_t)TSC_WAITING;
    } else if (core->causes != 0u) {
        if (supervisor_known && (core->constraint[TSC_LIMIT] == 0u)) { /* both stop: the harder braking holds */
            out.words[TSC_DECELERATION] =
                (uint32_t)greater(l->stop_deceleration_mmps2, (int32_t)core->constraint[TSC_DECELERATION]);
        }
        out.words[TSC_STATE] = (uint32_t)((vehicle_known && standing(core, l)) ? TSC_MRC : TSC_L1);
        out.words[TSC_FLAGS] = (uint32_t)TSC_HAZARD_LIGHTS | (uint32_t)TSC_REMOTE_NOTIFICATION |
                               (core->constraint[TSC_FLAGS] & (uint32_t)TSC_PULL_OVER);
        out.words[TSC_RESETS] = core->causes;
    } else {
        out.words[TSC_LIMIT] = (uint32_t)limit_of(core, l);
        out.words[TSC_DECELERATION] = core->constraint[TSC_DECELERATION];
        out.words[TSC_STATE] = core->constraint[TSC_STATE];
        out.words[TSC_FLAGS] = core->constraint[TSC_FLAGS];
    }
    tsc_seal(out.words, (uint32_t)TSC_CONSTRAINT_WORDS);
    return out;
}

tsc_command tsc_step(tsc_core *core, const tsc_limits *l, const uint32_t *constraint, const uint32_t *motion,
                     uint32_t now_ms) {
    if (!core->started) {
        core->started = true;
        core->cycle_ms = now_ms;
    }
    const int32_t elapsed_ms = (int32_t)since(now_ms, core->cycle_ms);
    core->cycle_ms = now_ms;

    /* Silence is judged before anything new is taken: what came back was silent all the same. */
    const bool supervisor_silent = since(now_ms, core->constraint_ms) > l->supervisor_timeout_ms;
    const bool vehicle_silent = since(now_ms, core->motion_ms) > l->vehicle_timeout_ms;
    uint32_t present = (core->constraint_heard && supervisor_silent) ? (uint32_t)TSC_SUPERVISOR_SILENT : 0u;
    present |= (core->motion_heard && vehicle_silent) ? (uint32_t)TSC_VEHICLE_SILENT : 0u;

    if (is_new(motion, (uint32_t)TSC_MOTION_WORDS, core->motion, core->motion_heard, vehicle_silent) &&
        motion_possible(motion)) {
        take_motion(core, l, motion, now_ms);
    }
    if (is_new(constraint, (uint32_t)TSC_CONSTRAINT_WORDS, core->constraint, core->constraint_heard, supervisor_silent) &&
        constraint_possible(l, constraint)) {
        present |= take_constraint(core, l, constraint, now_ms);
    }

    /* Until the vehicle may move it is held anyway: who falls silent then is still starting. */
    const uint32_t silence = (uint32_t)TSC_SUPERVISOR_SILENT | (uint32_t)TSC_VEHICLE_SILENT;
    const bool starting = (!core->released) && ((present & silence) != 0u);
    const bool waiting = (!core->constraint_heard) || (!core->motion_heard) || starting;
    const bool driver = core->motion_heard && !vehicle_silent && (core->motion[TSC_DRIVER] == 1u);
    if (waiting || driver) {
        begin_anew(core);
        if (!driver) {
            core->causes |= present & (uint32_t)TSC_FORBIDDEN;
        }
    } else {
        present |= (core->jumps >= l->confirmations) ? (uint32_t)TSC_SPEED_IMPLAUSIBLE : 0u;
        present |= (core->contradictions >= 2u) ? (uint32_t)TSC_TREND : 0u;
        present |= (core->excesses >= l->confirmations) ? (uint32_t)TSC_TOO_FAST : 0u;
        core->causes |= present;
        core->released = core->released || ((core->causes == 0u) && (core->constraint[TSC_LIMIT] != 0u));
        obey_reset(core, l, present);
        move_ceiling(core, l, (core->causes != 0u) ? 0 : limit_of(core, l), elapsed_ms);
    }
    return command_of(core, l, waiting, driver, present);
}

bool tsc_cycle(tsc_core *core, const tsc_limits *l, volatile tsc_block *block, uint32_t now_ms) {
    uint32_t constraint[TSC_CONSTRAINT_WORDS];
    uint32_t motion[TSC_MOTION_WORDS];
    if (block->layout != TSC_LAYOUT) {
        return false;
    }
    for (uint32_t i = 0u; i < (uint32_t)TSC_CONSTRAINT_WORDS; i++) {
        constraint[i] = block->constraint[i];
    }
    for (uint32_t i = 0u; i < (uint32_t)TSC_MOTION_WORDS; i++) {
        motion[i] = block->motion[i];
    }
    const tsc_command command = tsc_step(core, l, constraint, motion, now_ms);
    for (uint32_t i = 0u; i < (uint32_t)TSC_CONSTRAINT_WORDS; i++) {
        block->command[i] = command.words[i];
    }
    return true;
}
