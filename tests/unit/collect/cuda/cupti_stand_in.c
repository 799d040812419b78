/* Stands in for CUPTI, and for NVIDIA's driver, where there is no GPU: it lends and completes buffers as CUPTI does, from the program's threads,
 * while it holds a lock of its own, and fills them with records of CUDA 13.0 (Kernel10, API). */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void (*requested)(uint8_t **, size_t *, size_t *);
typedef void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static requested ask;
static completed done;
static uint8_t *buffer;
static size_t size, used, dropped;
static uint64_t enabled;
static uint32_t correlation, delay;
static int thread_type;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void complete(void) {
    if (buffer) done(NULL, 0, buffer, size, used);
    buffer = NULL;
}

static uint8_t *room(size_t bytes) {
    if (buffer && used + bytes > size) complete();
    if (!buffer) {
        size_t most;
        ask(&buffer, &size, &most);
        used = 0;
    }
    if (!buffer || used + bytes > size) {
        dropped++;
        return NULL;
    }
    uint8_t *at = buffer + used;
    used += bytes;
    memset(at, 0, bytes);
    return at;
}

static void put32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void put64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

/* What a program does: launch so many kernels of a name. */
void stand_in_launch(const char *name, int count) {
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        uint64_t start = now();
        correlation++;
        uint8_t *at = (enabled >> 5 & 1) ? room(40) : NULL;
        if (at) {
            put32(at, 5), put32(at + 4, 211), put64(at + 8, start), put64(at + 16, start + 1000);
            put32(at + 24, (uint32_t)getpid()), put32(at + 28, (uint32_t)gettid()), put32(at + 32, correlation);
        }
        at = (enabled >> 10 & 1) ? room(216) : NULL;
        if (at) {
            put32(at, 10), put64(at + 16, start + 2000), put64(at + 24, start + 5000);
            for (int side = 0; side < 6; side++) put32(at + 52 + 4 * side, 1 + (uint32_t)side);
            put32(at + 48, 7), put32(at + 92, correlation), put64(at + 104, (uint64_t)(uintptr_t)name);
        }
        pthread_mutex_unlock(&lock);
    }
}

void stand_in_delay(uint32_t seconds) { delay = seconds; }
uint64_t stand_in_enabled(void) { return enabled; }
int stand_in_thread_type(void) { return thread_type; }
/* Somebody else registers callbacks: the buffer that is in use goes astray. */
void stand_in_take_over(void) { buffer = NULL; }

int cuptiGetVersion(uint32_t *version) { return *version = 130001, 0; }
int cuptiGetTimestamp(uint64_t *time) { return *time = now(), 0; }
int cuptiGetResultString(int code, const char **text) { return *text = code == 21 ? "INVALID_KIND" : "UNKNOWN", 0; }
int cuptiGetThreadIdType(int *type) { return *type = thread_type, 0; }
int cuptiSetThreadIdType(int type) { return thread_type = type, 0; }
int cuptiActivityEnable(int kind) {
    if (kind == 38) return 21;
    return enabled |= UINT64_C(1) << kind, 0;
}
int cuptiActivityDisable(int kind) { return enabled &= ~(UINT64_C(1) << kind), 0; }
int cuptiActivityRegisterCallbacks(requested a, completed b) { return ask = a, done = b, 0; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    *count = dropped;
    dropped = 0;
    return 0;
}
int cuptiActivityFlushAll(uint32_t flag) {
    if (flag) sleep(delay);
    pthread_mutex_lock(&lock);
    complete();
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    static const char *const runtime[] = {"cudaDriverGetVersion_v3020", "cudaRuntimeGetVersion_v3020"};
    if (number > 211) return 1;
    *name = domain == 2 && number == 211 ? "cudaLaunchKernel_ptsz_v7000" : runtime[number % 2];
    return 0;
}

/* The driver: one GPU. */
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int number) { return *device = number, 0; }
int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    strncpy(name, "Stand-in", (size_t)length);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 10: return *value = 32, 0;      /* threads of a warp */
    case 16: return *value = 2, 0;       /* multiprocessors */
    case 39: return *value = 2048, 0;    /* threads of a multiprocessor */
    case 75: return *value = 9, 0;       /* compute capability */
    case 106: return *value = 32, 0;     /* blocks of a multiprocessor */
    default: return *value = 65536, 0;   /* registers, shared memory */
    }
}
static int waits;
int stand_in_waits(void) { return waits; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = 2 - *mode, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    return *flags = 0, *active = 1, 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = &waits, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxPushCurrent_v2(void *context) { return context != &waits; }
int cuCtxPopCurrent_v2(void **context) { return *context = &waits, 0; }
int cuCtxSynchronize(void) { return waits++, 0; }
int cuProfilerStart(void) { return 0; }
int cuProfilerStop(void) { return 0; }
