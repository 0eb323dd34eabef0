/*
 * Vectors of the safety core: every decision with every condition that matters, one small story each.
 * Built and run by test_safety_core.py; prints the first broken expectation and exits with 1.
 */
#include "safety_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsc_core core;
static tsc_limits limits;
static uint32_t constraint[TSC_CONSTRAINT_WORDS], motion[TSC_MOTION_WORDS];
static uint32_t now_ms;
static tsc_command out;
static const char *story = "";

#define EXPECT(condition)                                                             \
    do {                                                                              \
        if (!(condition)) {                                                           \
            printf("%s, line %d: %s does not hold\n", story, __LINE__, #condition);   \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define LIMIT ((int32_t)out.words[TSC_LIMIT])
#define BRAKE ((int32_t)out.words[TSC_DECELERATION])
#define STATE (out.words[TSC_STATE])
#define FLAGS (out.words[TSC_FLAGS])
#define CAUSES (out.words[TSC_RESETS])

static void begin(const char *name) {
    story = name;
    memset(&core, 0, sizeof core);
    limits = TSC_DEFAULTS;
    memset(constraint, 0, sizeof constraint);
    memset(motion, 0, sizeof motion);
    constraint[TSC_CONSTRAINT_WORDS - 1] = motion[TSC_MOTION_WORDS - 1] = 1u; /* no sealed record yet */
    now_ms = 4294967000u;                                                     /* so that the clock wraps in every story */
}

static void say(uint32_t state, int32_t limit_mmps) {
    constraint[TSC_COUNTER]++;
    constraint[TSC_STATE] = state;
    constraint[TSC_LIMIT] = (uint32_t)limit_mmps;
    constraint[TSC_DECELERATION] = 2000u;
    tsc_seal(constraint, TSC_CONSTRAINT_WORDS);
}

static void reseal(void) {
    constraint[TSC_COUNTER]++;
    tsc_seal(constraint, TSC_CONSTRAINT_WORDS);
}

static void move(int32_t speed_mmps, int32_t acceleration_mmps2) {
    motion[TSC_COUNTER]++;
    motion[TSC_SPEED] = (uint32_t)speed_mmps;
    motion[TSC_ACCELERATION] = (uint32_t)acceleration_mmps2;
    tsc_seal(motion, TSC_MOTION_WORDS);
}

static void tick(void) {
    now_ms += 10u;
    out = tsc_step(&core, &limits, constraint, motion, now_ms);
    EXPECT(out.words[TSC_CONSTRAINT_WORDS - 1] == tsc_crc(out.words, TSC_CONSTRAINT_WORDS - 1));
}

/* Both speak every 20 ms for a while; the speed changes evenly, with the acceleration that belongs to it. */
static void run(uint32_t duration_ms, uint32_t state, int32_t limit_mmps, int32_t speed_mmps, int32_t acceleration_mmps2) {
    for (uint32_t t = 0; t < duration_ms; t += 20u) {
        say(state, limit_mmps);
        move(speed_mmps + (acceleration_mmps2 * (int32_t)t) / 1000, acceleration_mmps2);
        tick();
        tick();
    }
}

static void healthy(int32_t speed_mmps) { run(200u, TSC_NOMINAL, 30000, speed_mmps, 0); }

static void parameters(void) {
    begin("parameters");
    EXPECT(tsc_limits_ok(&limits));
#define REFUSED(field, value)            \
    do {                                 \
        limits = TSC_DEFAULTS;           \
        limits.field = (value);          \
        EXPECT(!tsc_limits_ok(&limits)); \
    } while (0)
    REFUSED(supervisor_timeout_ms, 0u);
    REFUSED(supervisor_timeout_ms, 1000u);
    REFUSED(vehicle_timeout_ms, 0u);
    REFUSED(vehicle_timeout_ms, 1000u);
    REFUSED(speed_max_mmps, 0);
    REFUSED(speed_max_mmps, 100001);
    REFUSED(degraded_speed_mmps, 40001);
    REFUSED(deceleration_max_mmps2, -1);
    REFUSED(stop_deceleration_mmps2, 4001);
    REFUSED(slowing_mmps2, 3001);
    REFUSED(slack_mmps, 0);
    REFUSED(tolerance_mmps, 0);
    REFUSED(acceleration_max_mmps2, 0);
    REFUSED(speed_noise_mmps, 0);
    REFUSED(trend_max_mmps, 0);
    REFUSED(trend_window_ms, 1001u);
    REFUSED(standstill_mmps, 0);
    REFUSED(confirmations, 0u);
}

static void known_crc(void) {
    begin("crc");
    const uint32_t words[2] = {0x34333231u, 0x38373635u}; /* "12345678" */
    EXPECT(tsc_crc(words, 2u) == 0x9AE0DAAFu);
}

static void passes_through(void) {
    begin("a healthy constraint passes unchanged");
    healthy(10000);
    constraint[TSC_FLAGS] = TSC_PULL_OVER;
    reseal();
    tick();
    EXPECT(LIMIT == 30000 && BRAKE == 2000 && STATE == TSC_NOMINAL && FLAGS == TSC_PULL_OVER && CAUSES == 0u);
    const uint32_t counter = out.words[TSC_COUNTER];
    tick();
    EXPECT(out.words[TSC_COUNTER] == counter + 1u);
}

static void waits(void) {
    begin("waits for both, and nothing is latched");
    tick();
    EXPECT(LIMIT == 0 && CAUSES == TSC_WAITING && STATE == TSC_INITIALISING && FLAGS == 0u);
    now_ms += 60000u;
    say(TSC_NOMINAL, 20000);
    tick();
    EXPECT(CAUSES == TSC_WAITING);
    move(0, 0);
    tick();
    EXPECT(LIMIT == 20000 && CAUSES == 0u);
    begin("waits for the supervisor");
    move(0, 0);
    tick();
    EXPECT(CAUSES == TSC_WAITING);
}

static void starts(void) {
    begin("who falls silent before the vehicle may move is still starting");
    run(100u, TSC_INITIALISING, 0, 0, 0);
    EXPECT(CAUSES == 0u && STATE == TSC_INITIALISING && !core.released);
    for (int i = 0; i < 30; i++) {
        say(TSC_INITIALISING, 0);
        tick();
    }
    EXPECT(CAUSES == TSC_WAITING && LIMIT == 0 && STATE == TSC_INITIALISING);
    for (int i = 0; i < 30; i++) {
        move(0, 0);
        tick();
    }
    EXPECT(CAUSES == TSC_WAITING);
    run(40u, TSC_NOMINAL, 20000, 0, 0);
    EXPECT(CAUSES == 0u && LIMIT == 20000 && core.released);
    story = "afterwards silence is a fault";
    for (int i = 0; i < 30; i++) {
        say(TSC_NOMINAL, 20000);
        tick();
    }
    EXPECT(CAUSES == TSC_VEHICLE_SILENT && LIMIT == 0);

    begin("a vehicle that does not stop before it may move is a fault all the same");
    run(12000u, TSC_INITIALISING, 0, 20000, 0);
    EXPECT(CAUSES == TSC_TOO_FAST && !core.released);

    begin("what is forbidden before the vehicle is heard stays forbidden");
    say(TSC_INITIALISING, 5000);
    tick();
    EXPECT(CAUSES == TSC_WAITING && LIMIT == 0);
    move(0, 0);
    tick();
    EXPECT(CAUSES == TSC_FORBIDDEN && LIMIT == 0 && !core.released);
}

static void supervisor_dies(void) {
    begin("a dead supervisor ends in a stop, in time");
    healthy(10000);
    constraint[TSC_FLAGS] = TSC_PULL_OVER;
    reseal();
    uint32_t waited_ms = 0u;
    while (CAUSES == 0u && waited_ms < 1000u) {
        move(10000, 0);
        tick();
        waited_ms += 10u;
    }
    EXPECT(CAUSES == TSC_SUPERVISOR_SILENT && waited_ms == limits.supervisor_timeout_ms + 20u);
    EXPECT(LIMIT == 0 && BRAKE == 3000 && STATE == TSC_L1);
    EXPECT(FLAGS == (TSC_HAZARD_LIGHTS | TSC_REMOTE_NOTIFICATION | TSC_PULL_OVER));
    story = "a supervisor that comes back does not end the stop, not with lower counters either";
    constraint[TSC_COUNTER] = 0u;
    run(100u, TSC_NOMINAL, 30000, 9900, -1000);
    EXPECT(CAUSES == TSC_SUPERVISOR_SILENT && LIMIT == 0 && core.constraint[TSC_COUNTER] == 5u);
    story = "a reset in motion is lost";
    constraint[TSC_RESETS] = 1u;
    run(40u, TSC_NOMINAL, 30000, 9800, -1000);
    EXPECT(CAUSES == TSC_SUPERVISOR_SILENT);
    run(4900u, TSC_NOMINAL, 30000, 9760, -2000);
    run(100u, TSC_NOMINAL, 30000, 0, 0);
    EXPECT(CAUSES == TSC_SUPERVISOR_SILENT && STATE == TSC_MRC);
    story = "a reset at standstill ends it";
    constraint[TSC_RESETS] = 2u;
    run(40u, TSC_NOMINAL, 30000, 0, 0);
    EXPECT(CAUSES == 0u && LIMIT == 30000);
}

static void reset_with_cause(void) {
    begin("a reset while the cause is there is lost");
    healthy(0);
    for (int i = 0; i < 30; i++) {
        say(TSC_NOMINAL, 30000);
        tick();
    }
    EXPECT(CAUSES == TSC_VEHICLE_SILENT);
    EXPECT(STATE == TSC_L1); /* speed unknown is never standstill */
    constraint[TSC_RESETS]++;
    say(TSC_NOMINAL, 30000);
    tick();
    EXPECT(CAUSES == TSC_VEHICLE_SILENT);
    run(100u, TSC_NOMINAL, 30000, 0, 0);
    EXPECT(CAUSES == TSC_VEHICLE_SILENT && STATE == TSC_MRC);
    constraint[TSC_RESETS]++;
    run(100u, TSC_NOMINAL, 30000, 0, 0);
    EXPECT(CAUSES == 0u);
}

static void old_resets(void) {
    begin("resets from before the core's time mean nothing");
    constraint[TSC_RESETS] = 7u;
    healthy(10000);
    EXPECT(core.resets == 7u);
}

static void broken_records(void) {
    begin("a broken, repeated, old or impossible record is no sign of life");
    for (int kind = 0; kind < 14; kind++) {
        begin(story);
        healthy(10000);
        for (int i = 0; i < 30; i++) {
            say(TSC_NOMINAL, 30000);
            move(10000, 0);
            switch (kind) {
            case 0: constraint[TSC_LIMIT] ^= 1u; break;
            case 1: constraint[TSC_COUNTER] = core.constraint[TSC_COUNTER]; break;
            case 2: constraint[TSC_COUNTER] = core.constraint[TSC_COUNTER] - 1u; break;
            case 3: constraint[TSC_LIMIT] = (uint32_t)-1; break;
            case 4: constraint[TSC_LIMIT] = 40001u; break;
            case 5: constraint[TSC_DECELERATION] = 0u; break;
            case 6: constraint[TSC_DECELERATION] = 4001u; break;
            case 7: constraint[TSC_STATE] = 7u; break;
            case 8: constraint[TSC_FLAGS] = 8u; break;
            case 9: motion[TSC_SPEED] = (uint32_t)100001; break;
            case 10: motion[TSC_SPEED] = (uint32_t)-100001; break;
            case 11: motion[TSC_ACCELERATION] = (uint32_t)50001; break;
            case 12: motion[TSC_ACCELERATION] = (uint32_t)-50001; break;
            default: motion[TSC_DRIVER] = 2u; break;
            }
            if (kind > 0) {
                tsc_seal(constraint, TSC_CONSTRAINT_WORDS);
            }
            tsc_seal(motion, TSC_MOTION_WORDS);
            tick();
            if (kind == 2 && CAUSES != 0u) {
                break; /* from a sender that was silent, a lower counter is a fresh start */
            }
        }
        EXPECT(LIMIT == 0 && (CAUSES & (kind < 9 ? TSC_SUPERVISOR_SILENT : TSC_VEHICLE_SILENT)) != 0u);
    }
}

static void driver_drives(void) {
    begin("the driver drives at once, and a stop waits for the hand-back");
    healthy(10000);
    run(60u, TSC_L1, 5000, 10000, 0);
    EXPECT(CAUSES == TSC_FORBIDDEN && LIMIT == 0);
    motion[TSC_DRIVER] = 1u;
    move(10000, 0);
    tick();
    EXPECT(STATE == TSC_MANUAL && LIMIT == limits.speed_max_mmps && FLAGS == 0u && CAUSES == TSC_FORBIDDEN);
    run(2000u, TSC_L1, 0, 10000, 0);
    EXPECT(STATE == TSC_MANUAL);
    motion[TSC_DRIVER] = 0u;
    run(40u, TSC_L1, 0, 10000, 0);
    EXPECT(LIMIT == 0 && CAUSES == TSC_FORBIDDEN);
    story = "a driver of whom nothing is heard any more does not drive";
    begin(story);
    motion[TSC_DRIVER] = 1u;
    healthy(10000);
    EXPECT(STATE == TSC_MANUAL);
    for (int i = 0; i < 30; i++) {
        say(TSC_NOMINAL, 30000);
        tick();
    }
    EXPECT(STATE == TSC_L1 && CAUSES == TSC_VEHICLE_SILENT);
}

static void forbidden(void) {
    static const uint32_t from[] = {TSC_L1, TSC_MRC};
    static const uint32_t to[] = {TSC_NOMINAL, TSC_L3, TSC_L2};
    for (unsigned i = 0; i < 2u; i++) {
        for (unsigned j = 0; j < 3u; j++) {
            begin("leaving the manoeuvre in motion");
            healthy(5000);
            run(100u, from[i], 0, 5000, -2000);
            EXPECT(CAUSES == 0u);
            run(40u, to[j], 10000, 4800, -2000);
            EXPECT(CAUSES == TSC_FORBIDDEN);
            begin("leaving it at standstill");
            healthy(0);
            run(100u, from[i], 0, 0, 0);
            run(40u, to[j], 10000, 0, 0);
            EXPECT(CAUSES == 0u && LIMIT == 10000);
        }
        begin("from the manoeuvre to the driver");
        healthy(5000);
        run(100u, from[i], 0, 5000, -2000);
        run(40u, TSC_MANUAL, 40000, 4800, -2000);
        EXPECT(CAUSES == 0u && STATE == TSC_MANUAL);
        begin("speed within the manoeuvre");
        healthy(5000);
        run(40u, from[i], 1, 5000, 0);
        EXPECT(CAUSES == TSC_FORBIDDEN);
        begin("on with the manoeuvre");
        healthy(5000);
        run(40u, from[i], 0, 5000, 0);
        run(40u, from[1u - i], 0, 5000, 0);
        EXPECT(CAUSES == 0u);
    }
    begin("speed while initialising");
    healthy(5000);
    run(40u, TSC_INITIALISING, 1, 5000, 0);
    EXPECT(CAUSES == TSC_FORBIDDEN);
    begin("initialising without");
    healthy(5000);
    run(40u, TSC_INITIALISING, 0, 5000, 0);
    EXPECT(CAUSES == 0u);
    begin("the first word that is heard may be the end of a manoeuvre");
    constraint[TSC_STATE] = TSC_L1;
    healthy(5000);
    EXPECT(CAUSES == 0u);
}

static void too_fast(void) {
    begin("above the limit by more than the tolerance");
    run(400u, TSC_NOMINAL, 20000, 20900, 0);
    EXPECT(CAUSES == 0u);
    run(2000u, TSC_NOMINAL, 20000, 21100, 0);
    EXPECT(CAUSES == TSC_TOO_FAST && LIMIT == 0);
    begin("a vehicle that brakes to a lower limit is given the time");
    healthy(25000);
    run(8500u, TSC_NOMINAL, 8000, 25000, -2000);
    EXPECT(CAUSES == 0u);
    begin("one that does not is stopped");
    healthy(25000);
    run(3000u, TSC_NOMINAL, 8000, 25000, 0);
    EXPECT(CAUSES == TSC_TOO_FAST);
    static const uint32_t degraded[] = {TSC_L3, TSC_L2};
    for (unsigned i = 0; i < 2u; i++) {
        begin("the envelope of degraded states holds whatever the supervisor allows");
        healthy(25000);
        run(100u, degraded[i], 30000, 25000, -2000);
        EXPECT(LIMIT == limits.degraded_speed_mmps && CAUSES == 0u);
        run(4000u, degraded[i], 30000, 24800, 0);
        EXPECT(CAUSES == TSC_TOO_FAST);
    }
    begin("the limit below the envelope is kept");
    healthy(5000);
    run(100u, TSC_L3, 6000, 5000, 0);
    EXPECT(LIMIT == 6000);
    begin("an excess of one record is none");
    healthy(10000);
    run(40u, TSC_NOMINAL, 10000, 10000, 0);
    core.ceiling_mmps = 9000;
    run(20u, TSC_NOMINAL, 10000, 10000, 0);
    EXPECT(CAUSES == 0u && core.excesses == 1u);
    run(20u, TSC_NOMINAL, 10000, 10000, 0);
    EXPECT(CAUSES == 0u && core.excesses == 0u);
}

static void implausible(void) {
    for (int sign = -1; sign <= 1; sign += 2) {
        begin("a speed that jumps");
        limits.trend_window_ms = 0u;
        healthy(20000);
        run(60u, TSC_NOMINAL, 30000, 20000 + sign * 10000, 0);
        EXPECT(CAUSES == TSC_SPEED_IMPLAUSIBLE);
        begin("one odd record");
        limits.trend_window_ms = 0u;
        healthy(20000);
        run(20u, TSC_NOMINAL, 30000, 20000 + sign * 5000, 0);
        run(200u, TSC_NOMINAL, 30000, 20000, 0);
        EXPECT(CAUSES == 0u && core.speed_mmps == 20000);
    }
    begin("reverse");
    run(200u, TSC_NOMINAL, 30000, -2000, 0);
    EXPECT(core.speed_mmps == 2000 && CAUSES == 0u);
}

static void trend(void) {
    begin("a frozen speed under braking");
    healthy(20000);
    for (int i = 0; i < 160; i++) {
        say(TSC_NOMINAL, 30000);
        move(20000, -4000);
        tick();
    }
    EXPECT(CAUSES == TSC_TREND);
    begin("a speed that falls as the acceleration says");
    healthy(20000);
    run(3000u, TSC_NOMINAL, 30000, 20000, -4000);
    EXPECT(CAUSES == 0u);
    begin("a speed that falls although nothing brakes");
    healthy(20000);
    for (int t = 0; t < 1800; t += 20) {
        say(TSC_NOMINAL, 30000);
        move(20000 - 4 * t, 0);
        tick();
        tick();
    }
    EXPECT(CAUSES == TSC_TREND);
    begin("a vehicle without an acceleration sensor");
    limits.trend_window_ms = 0u;
    healthy(20000);
    for (int i = 0; i < 160; i++) {
        say(TSC_NOMINAL, 30000);
        move(20000, -4000);
        tick();
    }
    EXPECT(CAUSES == 0u);
}

static void harder_braking(void) {
    begin("of two who brake the harder braking holds");
    healthy(10000);
    run(40u, TSC_L1, 1, 10000, 0);
    run(40u, TSC_L1, 0, 10000, -2000);
    EXPECT(CAUSES == TSC_FORBIDDEN && BRAKE == 3000);
    constraint[TSC_DECELERATION] = 4000u;
    reseal();
    tick();
    EXPECT(BRAKE == 4000);
    story = "a dead supervisor's braking does not count";
    for (int i = 0; i < 40; i++) {
        move(9000, 0);
        tick();
    }
    EXPECT(BRAKE == 3000);
    begin("nor that of one who does not stop");
    healthy(10000);
    run(40u, TSC_L1, 1, 10000, 0);
    constraint[TSC_STATE] = TSC_NOMINAL;
    constraint[TSC_LIMIT] = 9000u;
    constraint[TSC_DECELERATION] = 4000u;
    reseal();
    tick();
    EXPECT(BRAKE == 3000);
}

static void paused(void) {
    begin("a core that was itself held up stops");
    healthy(10000);
    now_ms += 3000u;
    say(TSC_NOMINAL, 30000);
    move(10000, 0);
    tick();
    EXPECT(CAUSES == (TSC_SUPERVISOR_SILENT | TSC_VEHICLE_SILENT) && LIMIT == 0);
}

/* What is allowed is allowed up to the limit itself, and what lies just beyond it is not. */
static void at_the_limits(void) {
    begin("parameters at their ends");
    limits.trend_window_ms = 1000u;
    EXPECT(tsc_limits_ok(&limits));

    begin("all flags at once are possible");
    healthy(10000);
    constraint[TSC_FLAGS] = TSC_ALL_FLAGS;
    reseal();
    tick();
    EXPECT(FLAGS == TSC_ALL_FLAGS);

    for (int sign = -1; sign <= 1; sign += 2) {
        for (int32_t over = 0; over <= 1; over++) {
            begin("a change of speed at the limit of what a vehicle can do");
            limits.trend_window_ms = 0u;
            healthy(20000); /* its last record is 20 ms old when the next one comes */
            const int32_t reach_mmps = (limits.acceleration_max_mmps2 * 20) / 1000;
            move(20000 + sign * (reach_mmps + limits.speed_noise_mmps + over), 0);
            tick();
            EXPECT(core.jumps == (uint32_t)over);
            /* a jump is followed as far as a vehicle can go, in its direction */
            EXPECT(core.speed_mmps == 20000 + sign * (reach_mmps + (over ? 0 : limits.speed_noise_mmps)));
        }
    }

    for (int32_t over = 0; over <= 1; over++) {
        begin("an unexplained change of speed at its limit");
        limits.acceleration_max_mmps2 = 50000;
        say(TSC_NOMINAL, 30000);
        move(10000, 0);
        tick();
        const uint32_t began_ms = now_ms;
        while (now_ms - began_ms < limits.trend_window_ms - 10u) {
            say(TSC_NOMINAL, 30000);
            move(10000, 0);
            tick();
        }
        EXPECT(core.window_ms == began_ms);
        move(10000 + limits.trend_max_mmps + over, 0);
        tick();
        EXPECT(core.window_ms == now_ms && core.contradictions == (uint32_t)over);
    }

    begin("no time has passed in the first cycle");
    say(TSC_NOMINAL, 5000);
    move(10000, 0);
    tick();
    EXPECT(core.ceiling_mmps == 10000 + limits.slack_mmps);

    begin("the ceiling itself is kept");
    healthy(10000);
    core.ceiling_mmps = 10000;
    move(10000, 0);
    tick();
    EXPECT(core.excesses == 0u);

    begin("silence as long as the timeout is none");
    healthy(10000);
    const uint32_t last_ms = core.motion_ms;
    while (now_ms - last_ms < limits.vehicle_timeout_ms) {
        say(TSC_NOMINAL, 30000);
        tick();
    }
    EXPECT(CAUSES == 0u);
    tick();
    EXPECT(CAUSES == TSC_VEHICLE_SILENT);

    begin("the limit of standstill is standstill");
    healthy(0);
    run(100u, TSC_L1, 0, limits.standstill_mmps, 0);
    run(40u, TSC_NOMINAL, 10000, limits.standstill_mmps, 0);
    EXPECT(CAUSES == 0u);
    begin("and what is beyond is not");
    healthy(0);
    run(100u, TSC_L1, 0, limits.standstill_mmps + 1, 0);
    run(40u, TSC_NOMINAL, 10000, limits.standstill_mmps + 1, 0);
    EXPECT(CAUSES == TSC_FORBIDDEN);

    begin("the driver's time does not count as an excess of automation");
    healthy(10000);
    core.excesses = 2u;
    motion[TSC_DRIVER] = 1u;
    move(10000, 0);
    tick();
    EXPECT(core.excesses == 0u && core.ceiling_mmps > 40000);
}

static void through_the_block(void) {
    begin("through the block");
    static tsc_block block;
    memset(&block, 0, sizeof block);
    EXPECT(!tsc_cycle(&core, &limits, &block, now_ms));
    EXPECT(block.command[TSC_COUNTER] == 0u && core.counter == 0u);
    block.layout = TSC_LAYOUT;
    say(TSC_NOMINAL, 20000);
    move(5000, 0);
    memcpy(block.constraint, constraint, sizeof constraint);
    memcpy(block.motion, motion, sizeof motion);
    EXPECT(tsc_cycle(&core, &limits, &block, now_ms));
    EXPECT(block.command[TSC_LIMIT] == 20000u && block.command[TSC_COUNTER] == 1u);
    EXPECT(block.command[TSC_CONSTRAINT_WORDS - 1] == tsc_crc(block.command, TSC_CONSTRAINT_WORDS - 1));
}

int main(void) {
    parameters();
    known_crc();
    passes_through();
    waits();
    starts();
    supervisor_dies();
    reset_with_cause();
    old_resets();
    broken_records();
    driver_drives();
    forbidden();
    too_fast();
    implausible();
    trend();
    harder_braking();
    paused();
    at_the_limits();
    through_the_block();
    return 0;
}
