/* Replaces CUPTI and NVIDIA's driver on machines without a GPU. It is compiled against NVIDIA's own headers: types, records and numbers
 * are theirs. It lends and completes buffers as CUPTI does, from the program's threads and from one of its own, while it holds a lock of its
 * own, and at the end of the process. */
#include <cupti.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_BuffersCallbackRequestFunc ask;
static CUpti_BuffersCallbackCompleteFunc done;
static uint8_t *buffer, *held;
static size_t size, used, dropped, held_size, held_used;
static uint64_t enabled;
static uint32_t correlation, delay, hold;
static CUpti_ActivityThreadIdType thread_type;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void complete(void) {
    if (buffer && hold) {
        held = buffer, held_size = size, held_used = used;
        hold = 0;
    } else if (buffer) {
        done(NULL, 0, buffer, size, used);
    }
    buffer = NULL;
}

/* Room for a record of a kind that is enabled, zeroed; NULL if it is not enabled, or dropped. */
static void *room(CUpti_ActivityKind kind, size_t bytes) {
    if (!(enabled >> kind & 1)) return NULL;
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
    memcpy(at, &kind, sizeof kind);
    return at;
}

static void call(CUpti_CallbackId number, uint64_t start) {
    CUpti_ActivityAPI *made = room(CUPTI_ACTIVITY_KIND_RUNTIME, sizeof *made);
    if (!made) return;
    made->cbid = number, made->start = start, made->end = start + 1000, made->correlationId = correlation;
    made->processId = (uint32_t)getpid(), made->threadId = (uint32_t)gettid();
}

static CUpti_ActivityKernel10 *kernel(const char *name, uint64_t start) {
    static CUpti_ActivityKernel10 nowhere;
    CUpti_ActivityKernel10 *made = room(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, sizeof *made);
    if (!made) return &nowhere;
    made->start = start, made->end = start + 3000, made->correlationId = correlation, made->name = name, made->streamId = 7;
    made->gridX = 1, made->gridY = 2, made->gridZ = 3, made->blockX = 4, made->blockY = 5, made->blockZ = 6;
    return made;
}

/* What a program does: launch so many kernels of a name. */
void stand_in_launch(const char *name, int count) {
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        uint64_t start = now();
        correlation++;
        call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000, start);
        kernel(name, start + 2000);
        pthread_mutex_unlock(&lock);
    }
}

/* Replay a graph: one call, and a kernel for each node. */
void stand_in_graph(const char *name, int nodes) {
    pthread_mutex_lock(&lock);
    uint64_t start = now();
    correlation++;
    call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, start);
    for (int node = 0; node < nodes; node++) {
        CUpti_ActivityKernel10 *made = kernel(name, start + 2000 + 4000 * (uint64_t)node);
        made->graphId = 3, made->graphNodeId = UINT64_C(0x300000001) + (uint64_t)node;
    }
    pthread_mutex_unlock(&lock);
}

/* Launch a kernel in each of two contexts of one GPU, the second one a client of MPS, whose streams have the same number. */
void stand_in_contexts(const char *name) {
    pthread_mutex_lock(&lock);
    for (uint32_t context = 1; context <= 2; context++) {
        CUpti_ActivityContext3 *made = room(CUPTI_ACTIVITY_KIND_CONTEXT, sizeof *made);
        if (made) {
            made->contextId = context, made->nullStreamId = 7;
            made->computeApiKind = context == 1 ? CUPTI_ACTIVITY_COMPUTE_API_CUDA : CUPTI_ACTIVITY_COMPUTE_API_CUDA_MPS;
        }
        uint64_t start = now();
        correlation++;
        call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000, start);
        kernel(name, start + 2000)->contextId = context;
    }
    pthread_mutex_unlock(&lock);
}

/* Keep the next full buffer back, and complete it when asked, or at the end of the process. */
void stand_in_hold(void) { hold = 1; }
void stand_in_complete_late(void) {
    pthread_mutex_lock(&lock);
    if (held) done(NULL, 0, held, held_size, held_used);
    held = NULL;
    pthread_mutex_unlock(&lock);
}
__attribute__((destructor)) static void at_the_end_of_the_process(void) {
    stand_in_complete_late();
    pthread_mutex_lock(&lock);
    complete();
    pthread_mutex_unlock(&lock);
}

void stand_in_delay(uint32_t seconds) { delay = seconds; }
uint64_t stand_in_enabled(void) { return enabled; }
int stand_in_thread_type(void) { return thread_type; }
/* Somebody else registers callbacks: the buffer that is in use goes astray. */
void stand_in_take_over(void) { buffer = NULL; }

CUptiResult cuptiGetVersion(uint32_t *version) { return *version = 130001, CUPTI_SUCCESS; }
CUptiResult cuptiGetTimestamp(uint64_t *time) { return *time = now(), CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult code, const char **text) {
    return *text = code == CUPTI_ERROR_INVALID_KIND ? "INVALID_KIND" : "UNKNOWN", CUPTI_SUCCESS;
}
CUptiResult cuptiGetThreadIdType(CUpti_ActivityThreadIdType *type) { return *type = thread_type, CUPTI_SUCCESS; }
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) { return thread_type = type, CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (kind == CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) return CUPTI_ERROR_INVALID_KIND;
    return enabled |= UINT64_C(1) << kind, CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enabled &= ~(UINT64_C(1) << kind), CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc a, CUpti_BuffersCallbackCompleteFunc b) {
    return ask = a, done = b, CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    *count = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    if (flag) sleep(delay);
    pthread_mutex_lock(&lock);
    complete();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t number, const char **name) {
    if (number >= CUPTI_RUNTIME_TRACE_CBID_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = "cudaDriverGetVersion_v3020";
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && number == CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000)
        *name = "cudaLaunchKernel_ptsz_v7000";
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && number == CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000)
        *name = "cudaGraphLaunch_v10000";
    return CUPTI_SUCCESS;
}

/* The driver: one GPU. */
CUresult cuInit(unsigned flags) { return (CUresult)flags; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) { return *device = number, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    strncpy(name, "Stand-in", (size_t)length);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return *value = 32, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return *value = 2, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return *value = 2048, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return *value = 9, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return *value = 32, CUDA_SUCCESS;
    default: return *value = 65536, CUDA_SUCCESS; /* registers, shared memory */
    }
}
static int waits;
int stand_in_waits(void) { return waits; }
static CUcontext only = (CUcontext)&waits;
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { return *mode = 2 - *mode, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    (void)device;
    return *flags = 0, *active = 1, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return (void)device, *context = only, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return (CUresult)device; }
CUresult cuCtxPushCurrent(CUcontext context) { return (CUresult)(context != only); }
CUresult cuCtxPopCurrent(CUcontext *context) { return *context = only, CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { return waits++, CUDA_SUCCESS; }
CUresult cuProfilerStart(void) { return CUDA_SUCCESS; }
CUresult cuProfilerStop(void) { return CUDA_SUCCESS; }
