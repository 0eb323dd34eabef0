#define _GNU_SOURCE
#include "safety_core_linux.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000LL

static int64_t now_ns(void) {
    struct timespec t = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return ((int64_t)t.tv_sec * 1000000000LL) + (int64_t)t.tv_nsec;
}

static void sleep_until(int64_t at_ns) {
    const struct timespec t = {(time_t)(at_ns / 1000000000LL), (long)(at_ns % 1000000000LL)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
        /* a signal; the time of waking stays the same */
    }
}

static void note_time(volatile uint32_t *worst_us, int64_t span_ns) {
    const uint32_t span_us = (uint32_t)(span_ns / 1000);
    if (span_us > *worst_us) {
        *worst_us = span_us;
    }
}

/* Whether the two commands tell the vehicle anything different: all but counter and CRC. */
static bool differs(const uint32_t *a, const volatile uint32_t *b) {
    bool different = false;
    for (uint32_t i = TSC_LIMIT; i < (uint32_t)(TSC_CONSTRAINT_WORDS - 1); i++) {
        different = different || (a[i] != b[i]);
    }
    return different;
}

int32_t tsc_run(tsc_loop *loop) {
    uint32_t last[TSC_CONSTRAINT_WORDS] = {0u};
    if (!tsc_limits_ok(&loop->limits) || (loop->period_ms == 0u) || (loop->period_ms > 100u)) {
        return -1;
    }
    int64_t due_ns = now_ns();
    int64_t told_ns = 0;
    while (loop->stop == 0) {
        const int64_t begin_ns = now_ns();
        loop->late_us = (uint32_t)((begin_ns - due_ns) / 1000);
        note_time(&loop->late_max_us, begin_ns - due_ns);
        if (!tsc_cycle(&loop->core, &loop->limits, loop->block, (uint32_t)(begin_ns / NS_PER_MS))) {
            return -1;
        }
        note_time(&loop->cycle_max_us, now_ns() - begin_ns);
        if (differs(last, loop->block->command) || ((begin_ns - told_ns) >= ((int64_t)loop->repeat_ms * NS_PER_MS))) {
            const uint64_t one = 1u;
            for (uint32_t i = 0u; i < (uint32_t)TSC_CONSTRAINT_WORDS; i++) {
                last[i] = loop->block->command[i];
            }
            told_ns = begin_ns;
            /* A full counter means that the listener is far behind; it will read the newest command all the same. */
            if (write(loop->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN) {
                return -1;
            }
        }
        due_ns += (int64_t)loop->period_ms * NS_PER_MS;
        if (due_ns < now_ns()) {
            due_ns = now_ns(); /* cycles that were missed are left out */
        }
        sleep_until(due_ns);
    }
    return 0;
}

uint32_t tsc_sizes(uint32_t *block_bytes) {
    *block_bytes = (uint32_t)sizeof(tsc_block);
    return (uint32_t)sizeof(tsc_loop);
}
