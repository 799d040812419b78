/* A thread that looks at the Python stacks of all threads, without the GIL, without signals, without a lock.
 *
 * Whatever takes the GIL to look sees a program only where that gives it up: between two operators, Python code would
 * have no sample at all. This thread reads the interpreter's memory instead (sampler_stacks.c), and tells what a thread
 * does from what the kernel says of it: its CPU clock runs on while its stack is read, or it stands in a system call.
 *
 * One sampler a process. `ss_sampler_start`, `_stop`, `_take` and `_follow` are called by one thread at a time; they
 * and the sampling thread share a ring of rows with one writer and one reader, and the list of followed processes.
 */
#define _GNU_SOURCE
#include "sampler.h"

#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 64, PROCESSES = 33, ROWS = 1 << 15, INTERPRETERS = 16, GONE_AFTER = 3, ENOUGH_WALKS = 400 };
/* ns: the time slice that is asked for, what counts as late, and what a change of threads on a core takes at most. */
enum { SLICE = 100000, LATE = 1000000, SWITCH = 100000 };

typedef struct {
    uint64_t time;
    uint32_t process, tid, stack, count, cpu;
    uint8_t state;
} row;

/* A file of /proc that is kept open: its number, -1 if it is not, and its inode. */
typedef struct {
    int number;
    ino_t inode;
} kernel_file;

typedef struct {
    ss_walked walked;
    uint64_t cpu, seen;
    kernel_file call, clock; /* the system call it stands in, and its CPU time */
    int standing;            /* it waited, so without CPU time it has not moved */
    row pending;             /* the row that its samples add to while it does not move; count 0: none */
} sampled;

enum { UNUSED, FOLLOWED, LEFT };

typedef struct {
    ss_process of;
    _Atomic int use;
    int failures, count;
    sampled threads[THREADS];
} followed;

ss_figures ss_sampler;
static followed processes[PROCESSES];
static row *rows;
static _Atomic uint32_t written, taken, flushes;
static _Atomic int stopping;
static pthread_t sampling;
static int running;
static uint32_t own_tid, serials;
static uint64_t tick, every, woken;
static double spare; /* ns of a period for each ns of CPU time that a look takes */
static double period;

#define AT(type, from, offset) (*(type *)((char *)(from) + (offset)))

static uint64_t now(clockid_t clock) {
    struct timespec at;
    if (clock_gettime(clock, &at)) return 0;
    return (uint64_t)at.tv_sec * 1000000000ull + (uint64_t)at.tv_nsec;
}

/* The number of a thread's CPU clock, which Linux makes of its id (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED). */
static clockid_t clock_of(uint32_t tid) { return (clockid_t)(~tid << 3 | 6); }

static void write_row(const row *r) {
    uint32_t at = written;
    if (at - atomic_load_explicit(&taken, memory_order_acquire) >= ROWS) {
        ss_sampler.lost += r->count;
        return;
    }
    rows[at % ROWS] = *r;
    atomic_store_explicit(&written, at + 1, memory_order_release);
}

static void flush(sampled *t) {
    if (t->pending.count) write_row(&t->pending);
    t->pending.count = 0;
}

static void open_file(const followed *p, uint32_t tid, const char *name, kernel_file *file) {
    char path[64];
    struct stat is = {0};
    snprintf(path, sizeof path, "/proc/%d/task/%u/%s", p->of.pid, tid, name);
    file->number = open(path, O_RDONLY | O_CLOEXEC);
    if (file->number >= 0) fstat(file->number, &is);
    file->inode = is.st_ino;
}

/* Closes a file unless the program has closed all files, and this number is another file now. */
static void close_file(kernel_file *file) {
    struct stat is;
    if (file->number >= 0 && !fstat(file->number, &is) && is.st_ino == file->inode) close(file->number);
    file->number = -1;
}

static void forget(sampled *t) {
    flush(t);
    close_file(&t->call);
    close_file(&t->clock);
}

static ssize_t read_file(const followed *p, uint32_t tid, const char *name, kernel_file *file, char *to, size_t room) {
    if (file->number < 0) open_file(p, tid, name, file);
    ssize_t length = file->number < 0 ? -1 : pread(file->number, to, room - 1, 0);
    to[length > 0 ? length : 0] = 0;
    return length;
}

/* Returns when a thread last had a core, in ns of the scheduler's clock on that core; 0 if the kernel does not say. */
static uint64_t last_on_core(const followed *p, uint32_t tid) {
    char text[400];
    kernel_file file = {-1, 0};
    ssize_t length = read_file(p, tid, "sched", &file, text, sizeof text);
    close_file(&file);
    char *value = length > 0 ? strstr(text, "se.exec_start") : NULL;
    value = value ? strchr(value, ':') : NULL;
    if (!value) return 0;
    uint64_t ms = strtoull(value + 1, &value, 10);
    return ms * 1000000 + (*value == '.' ? strtoull(value + 1, NULL, 10) : 0); /* six digits behind the point */
}

/* Returns whether a thread that can run was displaced by this one: it had the core until this one woke up. */
static int displaced_by_us(const followed *p, uint32_t tid, uint64_t woken) {
    uint64_t its = last_on_core(p, tid);
    now(CLOCK_THREAD_CPUTIME_ID); /* brings what the kernel says of this thread up to date */
    uint64_t ours = last_on_core(&processes[0], own_tid), since = now(CLOCK_MONOTONIC) - woken;
    return !its || !ours || (its + since + SWITCH >= ours && its <= ours + SWITCH);
}

/* Returns what a thread stands in: the class of a system call, or SS_PYTHON if it runs or could run. */
static enum ss_state stands_in(const followed *p, sampled *t, uint64_t gil) {
    char text[256];
    if (read_file(p, t->walked.tid, "syscall", &t->call, text, sizeof text) <= 0) return SS_WAITING;
    if (text[0] == 'r') return SS_PYTHON;
    long call = strtol(text, NULL, 10);
    char *space = strchr(text, ' ');
    uint64_t first = space ? strtoull(space + 1, NULL, 16) : 0;
    switch (call) {
    case SYS_futex:
        return gil && first >= gil && first < gil + (uint64_t)ss_at[SS_GIL_SIZE] ? SS_GIL : SS_LOCK;
    case SYS_nanosleep: case SYS_clock_nanosleep:
        return SS_SLEEP;
    case SYS_wait4: case SYS_waitid:
        return SS_CHILD;
    case SYS_read: case SYS_pread64: case SYS_readv: case SYS_preadv: case SYS_write: case SYS_pwrite64:
    case SYS_writev: case SYS_pwritev: case SYS_recvfrom: case SYS_recvmsg: case SYS_recvmmsg: case SYS_sendto:
    case SYS_sendmsg: case SYS_sendmmsg: case SYS_select: case SYS_pselect6: case SYS_poll: case SYS_ppoll:
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_accept: case SYS_accept4: case SYS_connect: case SYS_fsync:
    case SYS_fdatasync: case SYS_openat: case SYS_io_getevents: case SYS_sendfile: case SYS_copy_file_range:
    case SYS_msync: case SYS_ioctl:
        return SS_IO;
    case -1: /* in a page fault, or stopped */
        return SS_PYTHON;
    default:
        return SS_WAITING;
    }
}

/* Returns the CPU time of a thread: of another process by a file that lags by up to a tick of the kernel. */
static uint64_t cpu_of(const followed *p, sampled *t) {
    char text[64];
    if (!p->of.serial) return now(clock_of(t->walked.tid));
    return read_file(p, t->walked.tid, "schedstat", &t->clock, text, sizeof text) <= 0 ? 0 : strtoull(text, NULL, 10);
}

typedef struct {
    uint64_t gil, holder;
    int locked, collecting;
} interpreter;

static enum ss_state state_of(const followed *p, sampled *t, const interpreter *of, uint64_t before, uint64_t after) {
    int holds = of->locked && of->holder == t->walked.tstate;
    if (after == before) {
        enum ss_state stands = stands_in(p, t, of->gil);
        if (stands != SS_PYTHON) return stands;
        if (!p->of.serial && !displaced_by_us(p, t->walked.tid, woken)) return SS_CORE;
    }
    return !holds ? SS_NATIVE : of->collecting ? SS_COLLECTING : SS_PYTHON;
}

static void look_at(followed *p, sampled *t, const interpreter *of, uint64_t time) {
    uint64_t before = cpu_of(p, t), after = before;
    ss_sampler.samples++;
    if (t->standing && before == t->cpu && t->pending.count) {
        /* In another process the clock lags: only a thread that stands in the same wait has not moved. */
        if (!p->of.serial || stands_in(p, t, of->gil) == (enum ss_state)t->pending.state) {
            t->pending.count++;
            return;
        }
    }
    uint32_t stack = 0;
    int how = ss_walk(&p->of, &t->walked, &stack);
    if (!p->of.serial) after = cpu_of(p, t);
    enum ss_state state = state_of(p, t, of, before, after);
    uint64_t used = t->cpu && before > t->cpu ? (before - t->cpu) / 1000 : 0;
    flush(t);
    t->pending = (row){time, p->of.serial, t->walked.tid, how == SS_TORN ? UINT32_MAX : stack, 1, (uint32_t)used,
                       (uint8_t)state};
    t->standing = how == SS_WHOLE && (state == SS_GIL || state > SS_CORE);
    t->cpu = before;
}

/* Returns what is kept of a thread; a new one takes the place of the one that was not seen for longest. */
static sampled *thread_of(followed *p, uint64_t tstate, uint32_t tid) {
    sampled *oldest = &p->threads[0];
    for (int i = 0; i < p->count; i++) {
        sampled *t = &p->threads[i];
        if (t->walked.tstate == tstate && t->walked.tid == tid) return t;
        if (t->seen < oldest->seen) oldest = t;
    }
    if (p->count < THREADS) oldest = &p->threads[p->count++];
    else if (oldest->seen == tick) return ss_sampler.lost++, NULL;
    else forget(oldest);
    *oldest = (sampled){.walked = {.tstate = tstate, .tid = tid}, .call = {-1, 0}, .clock = {-1, 0}};
    return oldest;
}

static int read_interpreter(const followed *p, uint64_t at, interpreter *of, uint64_t *thread, uint64_t *next) {
    char gil[32];
    of->gil = ss_at[SS_RUNTIME_GIL] ? p->of.runtime + (uint64_t)ss_at[SS_RUNTIME_GIL] : 0;
    if (!of->gil && ss_read(p->of.pid, &of->gil, at + (uint64_t)ss_at[SS_CEVAL_GIL], 8) < 0) return -1;
    struct iovec to[4] = {{gil, 24}, {thread, 8}, {next, 8}, {&of->collecting, 4}};
    struct iovec from[4] = {{(void *)of->gil, 24},
                            {(void *)(at + (uint64_t)ss_at[SS_THREADS]), 8},
                            {(void *)(at + (uint64_t)ss_at[SS_INTERP_NEXT]), 8},
                            {(void *)(at + (uint64_t)ss_at[SS_GC_COLLECTING]), 4}};
    if (!of->gil || ss_read_pieces(p->of.pid, to, from, 4) < 0) return -1;
    of->holder = AT(uint64_t, gil, ss_at[SS_GIL_HOLDER]);
    of->locked = AT(int, gil, ss_at[SS_GIL_LOCKED]) == 1;
    return 0;
}

/* Looks at every thread of a process, or at one; of another process at its main thread only. */
static int look_into(followed *p, uint64_t time, uint32_t only) {
    uint64_t at, next = 0, tstate = 0;
    interpreter of;
    if (ss_read(p->of.pid, &at, p->of.runtime + (uint64_t)ss_at[SS_INTERPRETERS], 8) < 0) return -1;
    for (int i = 0; at && i < INTERPRETERS; i++, at = next) {
        if (read_interpreter(p, at, &of, &tstate, &next) < 0) return 0;
        for (int j = 0; tstate && j < 4 * THREADS; j++) {
            char state[1024];
            if (ss_read(p->of.pid, state, tstate, (size_t)ss_at[SS_THREAD_TOP]) < 0) break;
            uint32_t tid = AT(uint32_t, state, ss_at[SS_THREAD_TID]);
            if (AT(uint64_t, state, ss_at[SS_THREAD_INTERP]) != at) break;
            int wanted = only ? tid == only : tid && tid != own_tid;
            sampled *t = wanted ? thread_of(p, tstate, tid) : NULL;
            if (t) t->seen = tick, look_at(p, t, &of, time);
            tstate = AT(uint64_t, state, ss_at[SS_THREAD_NEXT]);
        }
    }
    return 0;
}

static void leave(followed *p) {
    for (int i = 0; i < p->count; i++) forget(&p->threads[i]);
    p->count = 0;
    if (p != processes) atomic_store(&p->use, UNUSED);
}

static void look(uint64_t time) {
    static uint32_t flushed;
    uint32_t wanted = atomic_load(&flushes);
    tick++, woken = time;
    ss_stacks_tick(tick, (uint64_t)(1e8 / period) + 1); /* a code found right is trusted for 0.1 s */
    for (int i = 0; i < PROCESSES; i++) {
        followed *p = &processes[i];
        int use = atomic_load_explicit(&p->use, memory_order_acquire);
        if (use == LEFT) leave(p);
        if (use != FOLLOWED) continue;
        if (i && tick % every) continue;
        int failed = look_into(p, time, i ? (uint32_t)p->of.pid : 0);
        ss_sampler.refused += failed && errno == EPERM;
        p->failures = failed ? p->failures + 1 : 0;
        if (i && p->failures == GONE_AFTER) leave(p);
        /* A thread that is gone keeps neither row nor files, and one that stands still shows up in every block. */
        for (int j = p->count - 1; j >= 0; j--) {
            sampled *t = &p->threads[j];
            if (wanted != flushed) flush(t);
            if (t->seen + 2 * every < tick) forget(t), *t = p->threads[--p->count];
        }
    }
    flushed = wanted;
}

/* Linux 6.12 and later: a thread that asks for short slices gets its turn early. Else it would get it when the training
 * blocks, and would see more waits than there are. */
static void ask_for_short_slices(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes, .runtime = SLICE};
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/* Sleeps on the word that ends the thread, so that who ends it need not wait for the next look. */
static void sleep_until(const struct timespec *until) {
    while (syscall(SYS_futex, &stopping, FUTEX_WAIT_BITSET_PRIVATE, 0, until, NULL, FUTEX_BITSET_MATCH_ANY) &&
           errno == EINTR) {}
}

static void *run(void *unused) {
    (void)unused;
    own_tid = (uint32_t)syscall(SYS_gettid);
    prctl(PR_SET_NAME, "stepscope-stack");
    ask_for_short_slices();
    uint64_t begun = now(CLOCK_MONOTONIC), due = begun, last = begun, random = begun | 1;
    double cost = 0;
    while (!atomic_load(&stopping)) {
        double wait = cost * spare > period ? cost * spare : period;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        due += (uint64_t)(wait * (0.5 + (double)(random >> 11) * 0x1p-53)); /* else it could keep time with the steps */
        struct timespec until = {(time_t)(due / 1000000000ull), (long)(due % 1000000000ull)};
        sleep_until(&until);
        if (atomic_load(&stopping)) break;
        uint64_t time = now(CLOCK_MONOTONIC), used = now(CLOCK_THREAD_CPUTIME_ID), gap = time - last;
        ss_sampler.late += time > due + LATE;
        ss_sampler.covered += gap < 3 * (uint64_t)wait ? gap : (uint64_t)wait; /* longer: the process stood still */
        if (time > due + 20 * (uint64_t)wait) due = time;
        last = time;
        ss_sampler.ticks++;
        look(time);
        ss_sampler.cpu = now(CLOCK_THREAD_CPUTIME_ID);
        cost += ((double)(ss_sampler.cpu - used) - cost) / 16;
        if (ss_sampler.walks > ENOUGH_WALKS && ss_sampler.torn * 20 > ss_sampler.walks) {
            ss_sampler.stopped = 1;
            break;
        }
    }
    /* The ids of this process's threads can still be asked for. */
    for (int i = 0; i < processes[0].count; i++) forget(&processes[0].threads[i]);
    for (int i = 1; i < PROCESSES; i++) leave(&processes[i]);
    return NULL;
}

static void in_child(void) {
    if (!running) return;
    running = 0; /* the thread and the tables are the parent's; the copies of its files are closed */
    for (int i = 0; i < PROCESSES; i++) {
        followed *p = &processes[i];
        for (int j = 0; j < p->count; j++) close_file(&p->threads[j].call), close_file(&p->threads[j].clock);
        p->count = 0;
        p->use = UNUSED;
    }
    ss_stacks_close(1);
    ss_memory_close();
    rows = NULL;
}

static void close_everything(void) {
    if (rows) munmap(rows, ROWS * sizeof *rows);
    rows = NULL;
    ss_stacks_close(0);
    ss_memory_close();
}

/* Makes the tables, and reads this interpreter once. `runtime` is the address of _PyRuntime, `plain` forces reads by
 * file. Returns 0, or the errno of what the system refuses. */
SS_SAMPLER_EXPORT int ss_sampler_open(const int64_t *offsets, uint64_t runtime, int plain) {
    static int registered;
    if (running || rows) return EBUSY;
    memcpy(ss_at, offsets, sizeof ss_at);
    int refused = ss_memory_open(plain);
    if (refused) return refused;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *made = mmap(0, ROWS * sizeof *rows, PROT_READ | PROT_WRITE, how, -1, 0);
    if (made != MAP_FAILED) rows = made, madvise(made, ROWS * sizeof *rows, MADV_DONTFORK);
    if (made == MAP_FAILED || ss_stacks_open()) return close_everything(), ENOMEM;
    if (!registered) registered = !pthread_atfork(NULL, NULL, in_child);
    ss_sampler = (ss_figures){0};
    atomic_store(&written, 0);
    atomic_store(&taken, 0);
    tick = 0, every = 1, period = 2e7;
    processes[0].of = (ss_process){getpid(), 0, runtime, 0};
    processes[0].use = FOLLOWED;
    running = 1;
    return 0;
}

/* Looks at the calling thread, which holds the GIL: what is read can be compared with what Python says. */
SS_SAMPLER_EXPORT void ss_sampler_try(void) {
    if (!running) return;
    own_tid = 0;
    tick++;
    ss_stacks_tick(tick, 0);
    look_into(&processes[0], now(CLOCK_MONOTONIC), (uint32_t)syscall(SYS_gettid));
    leave(&processes[0]);
}

/* Begins to sample `hz` times a second, and workers at every `workers_every`th of these times; less often where it
 * would take more than `share` of a core. 0, or an errno. */
SS_SAMPLER_EXPORT int ss_sampler_start(double hz, uint64_t workers_every, double share) {
    sigset_t all, before;
    pthread_attr_t small;
    if (!running || hz <= 0 || share <= 0) return EINVAL;
    ss_sampler = (ss_figures){0};
    period = 1e9 / hz, spare = 1 / share, every = workers_every ? workers_every : 1;
    processes[0].count = 0;
    atomic_store(&stopping, 0);
    sigfillset(&all);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* no signal of the program is ever delivered to the new thread */
    int failed = pthread_create(&sampling, &small, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
    running = failed ? 1 : 2;
    return failed;
}

/* Ends the thread; what it has written can still be taken. */
SS_SAMPLER_EXPORT void ss_sampler_stop(void) {
    if (running != 2) return;
    atomic_store(&stopping, 1);
    syscall(SYS_futex, &stopping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(sampling, NULL);
    running = 1;
}

/* Gives up everything; nothing can be taken any more. */
SS_SAMPLER_EXPORT void ss_sampler_close(void) {
    ss_sampler_stop();
    if (!running) return;
    processes[0].use = UNUSED;
    running = 0;
    close_everything();
}

/* Follows a child of this process, too. Returns its number in rows; 0 if the rows are full. */
SS_SAMPLER_EXPORT uint32_t ss_sampler_follow(int pid, uint64_t runtime) {
    for (int i = 1; running && i < PROCESSES; i++) {
        if (atomic_load(&processes[i].use) != UNUSED) continue;
        processes[i].of = (ss_process){pid, ++serials, runtime, 0};
        processes[i].failures = 0;
        atomic_store_explicit(&processes[i].use, FOLLOWED, memory_order_release);
        return serials;
    }
    return 0;
}

SS_SAMPLER_EXPORT void ss_sampler_leave(uint32_t serial) {
    for (int i = 1; running && i < PROCESSES; i++) {
        int expected = FOLLOWED;
        if (processes[i].of.serial == serial) atomic_compare_exchange_strong(&processes[i].use, &expected, LEFT);
    }
}

static uint8_t *put(uint8_t *to, uint64_t value) {
    for (; value > 127; value >>= 7) *to++ = (uint8_t)(value & 127) | 128;
    *to++ = (uint8_t)value;
    return to;
}

/* Takes rows, at most as many as fit into `room` bytes (40 each): seven varints each, of which the first is the time in
 * us since the row before, zigzag. The rows of threads that stand still come with the next call. Returns the bytes. */
SS_SAMPLER_EXPORT int64_t ss_sampler_take(uint8_t *to, int64_t room) {
    uint8_t *at = to;
    uint64_t before = 0;
    uint32_t from = taken, end = atomic_load_explicit(&written, memory_order_acquire);
    for (; rows && from != end && at + 40 <= to + room; from++) {
        const row *r = &rows[from % ROWS];
        int64_t later = (int64_t)(r->time / 1000 - before);
        before = r->time / 1000;
        at = put(put(put(at, (uint64_t)later << 1 ^ (uint64_t)(later >> 63)), r->process), r->tid);
        at = put(put(put(put(at, r->state), r->count), (uint64_t)r->stack), r->cpu);
    }
    atomic_store_explicit(&taken, from, memory_order_release);
    if (from == end) atomic_fetch_add(&flushes, 1);
    return at - to;
}

SS_SAMPLER_EXPORT void ss_sampler_figures(ss_figures *to) {
    *to = ss_sampler;
    to->waiting = written - taken;
}

/* Writes the ids of the threads that are looked at; returns how many. */
SS_SAMPLER_EXPORT int64_t ss_sampler_threads(uint32_t *to, int64_t room) {
    int64_t count = running ? processes[0].count : 0;
    if (count > room) count = room;
    for (int64_t i = 0; i < count; i++) to[i] = processes[0].threads[i].walked.tid;
    return count;
}
#else
#include <errno.h>

/* Only Linux on x86-64 lets a thread read what this one reads; python_layout.py says so. */
ss_figures ss_sampler;

SS_SAMPLER_EXPORT int ss_sampler_open(const int64_t *offsets, uint64_t runtime, int plain) {
    return (void)offsets, (void)runtime, (void)plain, ENOSYS;
}
SS_SAMPLER_EXPORT void ss_sampler_try(void) {}
SS_SAMPLER_EXPORT int ss_sampler_start(double hz, uint64_t workers_every, double share) {
    return (void)hz, (void)workers_every, (void)share, ENOSYS;
}
SS_SAMPLER_EXPORT void ss_sampler_stop(void) {}
SS_SAMPLER_EXPORT void ss_sampler_close(void) {}
SS_SAMPLER_EXPORT uint32_t ss_sampler_follow(int pid, uint64_t runtime) { return (void)pid, (void)runtime, 0; }
SS_SAMPLER_EXPORT void ss_sampler_leave(uint32_t serial) { (void)serial; }
SS_SAMPLER_EXPORT int64_t ss_sampler_take(uint8_t *to, int64_t room) { return (void)to, (void)room, 0; }
SS_SAMPLER_EXPORT void ss_sampler_figures(ss_figures *to) { *to = ss_sampler; }
SS_SAMPLER_EXPORT int64_t ss_sampler_threads(uint32_t *to, int64_t room) { return (void)to, (void)room, 0; }
#endif
