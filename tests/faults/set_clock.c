// Preloaded into a process: its system clock can be set without touching the machine's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static volatile long long shifted;
void shift(long long ns) { shifted = ns; }
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) { long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + shifted; at->tv_sec = ns / 1000000000LL; at->tv_nsec = ns % 1000000000LL; }
    return code;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
