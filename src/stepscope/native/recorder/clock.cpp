#include "clock.h"

#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stepscope {

namespace {

// Whether the counter is invariant (one rate in all power states) and the kernel uses it as a clock source; the kernel
// stops that when it finds the counters of two processors to differ.
bool tsc_is_invariant() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & (1u << 8))) return false;
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/available_clocksource", "re");
    if (!file) return true;
    char text[256] = "";
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return !length || strstr(text, "tsc") || strstr(text, "kvm-clock") || strstr(text, "hyperv");
#else
    return false;
#endif
}

}  // namespace

bool ticks_are_tsc = tsc_is_invariant();

Moment take_moment() {
    Moment best{0, 0, 0, UINT32_MAX, UINT32_MAX};
    int64_t offset = 0;
    for (int i = 0; i < 9; i++) {
        int64_t first = nanoseconds(CLOCK_MONOTONIC);
        int64_t epoch = nanoseconds(CLOCK_REALTIME);
        uint64_t before = ticks();
        int64_t second = nanoseconds(CLOCK_MONOTONIC);
        uint64_t after = ticks();
        int64_t third = nanoseconds(CLOCK_MONOTONIC);
        // The first and the third reading enclose the ticks: their distance bounds the error, in ns.
        uint32_t around = uint32_t((third - first) / 2 + 1), half = uint32_t((second - first) / 2 + 1);
        if (around < best.ticks_uncertainty) {
            best.ticks = before + (after - before) / 2, best.monotonic = second;
            best.ticks_uncertainty = around;
        }
        if (half < best.epoch_uncertainty) best.epoch_uncertainty = half, offset = epoch - (first + (second - first) / 2);
    }
    best.epoch = best.monotonic + offset;
    return best;
}

}  // namespace stepscope
