/*
 * The safety core: a second, independent channel between the supervisor and the vehicle.
 *
 * It hears two senders, the supervisor and the vehicle, through records of 32-bit words in shared memory. Each cycle it
 * checks that both are alive, that what they say is whole and possible, and that the vehicle does what it was told. If not,
 * it commands a stop on its own and holds it until somebody resets it at standstill. Otherwise the supervisor's constraint
 * passes through unchanged. It knows nothing of models, cameras or ROS.
 *
 * Integers only, no heap, no recursion, every loop bounded by a constant; C11, freestanding except for <stdint.h> and
 * <stdbool.h>. Times are milliseconds of a clock that wraps after 2^32; only differences below 2^31 are used.
 */
#ifndef TRIPTYCH_SAFETY_CORE_H
#define TRIPTYCH_SAFETY_CORE_H

#include <stdbool.h>
#include <stdint.h>

#define TSC_LAYOUT 1u /* of the block below; writers and reader must agree */

/* Words of a record. The first is the counter, the last a CRC-32 (zlib) over all before it, each word little-endian. */
enum {
    TSC_COUNTER = 0,

    TSC_LIMIT = 1,        /* constraint, command: speed limit, mm/s */
    TSC_DECELERATION = 2, /* constraint, command: how hard to brake to it, mm/s^2 */
    TSC_STATE = 3,        /* constraint, command: state of the degradation machine */
    TSC_FLAGS = 4,        /* constraint, command: TSC_HAZARD_LIGHTS and following */
    TSC_RESETS = 5,       /* constraint: how many resets an operator asked for; command: TSC_CAUSE bits */
    TSC_CONSTRAINT_WORDS = 7,

    TSC_SPEED = 1,        /* motion: mm/s, forward positive, two's complement */
    TSC_ACCELERATION = 2, /* motion: mm/s^2, from another sensor than the speed */
    TSC_DRIVER = 3,       /* motion: 1 while the driver steers or brakes, else 0 */
    TSC_MOTION_WORDS = 5
};

enum { TSC_HAZARD_LIGHTS = 1, TSC_PULL_OVER = 2, TSC_REMOTE_NOTIFICATION = 4, TSC_ALL_FLAGS = 7 };

/* Degradation states, as in msg/DegradationState. */
enum {
    TSC_INITIALISING = 0,
    TSC_NOMINAL = 1,
    TSC_L3 = 2,
    TSC_L2 = 3,
    TSC_L1 = 4,
    TSC_MRC = 5,
    TSC_MANUAL = 6
};

/* Why the core commands a stop. */
enum {
    TSC_WAITING = 1,             /* not everybody was heard yet; ends by itself */
    TSC_SUPERVISOR_SILENT = 2,   /* no whole, new, possible constraint in time */
    TSC_VEHICLE_SILENT = 4,      /* the same of the vehicle's motion */
    TSC_SPEED_IMPLAUSIBLE = 8,   /* the speed changed faster than any vehicle can */
    TSC_TREND = 16,              /* speed and acceleration contradict each other */
    TSC_TOO_FAST = 32,           /* above the limit, or not slowing down to it */
    TSC_FORBIDDEN = 64           /* the supervisor left the minimal risk manoeuvre in motion, or allowed speed in it */
};

/* Parameters; all positive. */
typedef struct {
    uint32_t supervisor_timeout_ms;
    uint32_t vehicle_timeout_ms;
    int32_t speed_max_mmps;              /* constraints above it are not possible */
    int32_t degraded_speed_mmps;         /* nobody drives faster by automation in L3, L2, L1 */
    int32_t deceleration_max_mmps2;      /* UN R157: above 4 m/s^2 is an emergency manoeuvre */
    int32_t stop_deceleration_mmps2;     /* of the core's own stop */
    int32_t slowing_mmps2;               /* at least this much the vehicle brakes while it is above a limit */
    int32_t slack_mmps;                  /* for brakes that come in late */
    int32_t tolerance_mmps;              /* of a kept limit */
    int32_t acceleration_max_mmps2;      /* of any vehicle, brakes on dry road */
    int32_t speed_noise_mmps;            /* of the speed signal, between two records */
    int32_t trend_max_mmps;              /* speed change that the acceleration does not explain, over a window */
    uint32_t trend_window_ms;            /* 0: the vehicle has no acceleration sensor */
    int32_t standstill_mmps;
    uint32_t confirmations;              /* records in a row before a suspicion counts */
} tsc_limits;

/* What the core remembers. All zero is its state before the first cycle. */
typedef struct {
    uint32_t constraint[TSC_CONSTRAINT_WORDS]; /* last accepted */
    uint32_t motion[TSC_MOTION_WORDS];
    uint32_t constraint_ms, motion_ms, cycle_ms; /* when */
    bool started, constraint_heard, motion_heard;
    bool released;         /* the vehicle was allowed to move: from then on silence is a fault, not a start */
    int32_t speed_mmps;    /* what the vehicle's speed may be at most, given what it was */
    int32_t ceiling_mmps;  /* what it may be now, on its way down to the limit */
    uint32_t jumps, excesses, contradictions; /* suspicions in a row */
    uint32_t window_ms;    /* when the present trend window began */
    int32_t window_mmps;   /* speed then */
    int32_t integral_um_ps; /* acceleration summed up since, um/s */
    uint32_t causes;       /* of the present stop; latched */
    uint32_t resets;       /* last seen */
    uint32_t counter;      /* of commands */
} tsc_core;

/* What the vehicle is told: a record like the constraint. */
typedef struct {
    uint32_t words[TSC_CONSTRAINT_WORDS];
} tsc_command;

/* The shared-memory block. Writers write whole records; a reader that meets half of one sees a wrong CRC. */
typedef struct {
    uint32_t layout;
    uint32_t constraint[TSC_CONSTRAINT_WORDS];
    uint32_t motion[TSC_MOTION_WORDS];
    uint32_t command[TSC_CONSTRAINT_WORDS];
} tsc_block;

extern const tsc_limits TSC_DEFAULTS;

/* CRC-32 (zlib polynomial) over `count` words, each little-endian. */
uint32_t tsc_crc(const uint32_t *words, uint32_t count);

/* Set the last of `count` words to the CRC of those before. */
void tsc_seal(uint32_t *words, uint32_t count);

/* Whether parameters make sense: positive, stop within the greatest deceleration, timeouts below a second. */
bool tsc_limits_ok(const tsc_limits *limits);

/* One cycle at `now_ms`. `constraint` and `motion` are copies of what lies in shared memory. */
tsc_command tsc_step(tsc_core *core, const tsc_limits *limits, const uint32_t *constraint, const uint32_t *motion,
                     uint32_t now_ms);

/* Copy the inputs out of a block, step, and write the command into it. False: another layout, nothing done. */
bool tsc_cycle(tsc_core *core, const tsc_limits *limits, volatile tsc_block *block, uint32_t now_ms);

#endif
