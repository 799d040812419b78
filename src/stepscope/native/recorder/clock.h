// Time stamps: the processor's time stamp counter if it is reliable, else CLOCK_MONOTONIC.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace stepscope {

// Whether ticks are those of the time stamp counter; decided once, before the first recording.
extern bool ticks_are_tsc;

inline int64_t nanoseconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// For callers that have tested `ticks_are_tsc`.
template <bool tsc>
uint64_t ticks_of() {
#if defined(__x86_64__)
    if (tsc) return __rdtsc();
#endif
    return uint64_t(nanoseconds(CLOCK_MONOTONIC));
}

inline uint64_t ticks() { return ticks_are_tsc ? ticks_of<true>() : ticks_of<false>(); }

// All clocks at one moment, each accurate to ± its uncertainty in ns.
struct Moment {
    uint64_t ticks;
    int64_t monotonic, epoch;
    uint32_t ticks_uncertainty, epoch_uncertainty;
};

// Reads the clocks several times and returns the tightest readings (about 2 µs).
Moment take_moment();

}  // namespace stepscope
