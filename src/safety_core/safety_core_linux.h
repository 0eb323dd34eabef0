/*
 * The safety core's loop on Linux: one thread that cycles at fixed times and wakes a listener when the command changes.
 * Everything the core decides is in safety_core.c; a microcontroller brings its own loop instead of this file.
 */
#ifndef TRIPTYCH_SAFETY_CORE_LINUX_H
#define TRIPTYCH_SAFETY_CORE_LINUX_H

#include "safety_core.h"

/* What a loop works on; all but `stop` is the loop's own while it runs. */
typedef struct {
    tsc_core core;
    tsc_limits limits;
    volatile tsc_block *block;
    uint32_t period_ms;     /* of the cycles, 1 to 100 */
    uint32_t repeat_ms;     /* the listener is woken at least this often */
    int32_t wake_fd;        /* an eventfd */
    volatile int32_t stop;  /* set to 1 to end the loop */
    volatile uint32_t late_us, late_max_us; /* how late the last cycle began, and the worst one */
    volatile uint32_t cycle_max_us;         /* longest cycle */
} tsc_loop;

/* Run until `stop`. Returns 0, or -1 if a parameter, the layout or the clock is not usable. */
int32_t tsc_run(tsc_loop *loop);

/* How large the structures are here, so that a caller in another language can compare: loop, block. */
uint32_t tsc_sizes(uint32_t *block_bytes);

#endif
