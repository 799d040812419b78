/* A thread that Python knows only while it works. Between two calls it has no thread state: it is in no
 * `threading.enumerate()`, and no profiler or debugger of the program finds it. stepscope/collect/own_thread.py uses it.
 */
#ifdef __linux__
#define _GNU_SOURCE

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { NAME = 16 }; /* bytes of a thread's name, for Linux */
/* How a thread is to end: after a last call, or without one. */
enum { GO_ON, LAST_CALL, AT_ONCE };

/* Called with 1 for the last time; else returns the seconds until the next call, 0 to end without a last one. */
typedef double work(int last);

typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *work;
    double first;
    int stopping, ended;
    char name[NAME];
} own_thread;

static struct timespec in(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double ns = (double)at.tv_nsec + (seconds - (double)(time_t)seconds) * 1e9;
    at.tv_sec += (time_t)seconds + (ns >= 1e9);
    at.tv_nsec = (long)(ns >= 1e9 ? ns - 1e9 : ns);
    return at;
}

/* Wait until `*flag` is not 0, `seconds` at most; return it. */
static int wait_for(own_thread *t, const int *flag, double seconds) {
    struct timespec until = in(seconds);
    pthread_mutex_lock(&t->lock);
    while (!*flag && pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0) {}
    int set = *flag;
    pthread_mutex_unlock(&t->lock);
    return set;
}

static void set(own_thread *t, int *flag, int value) {
    pthread_mutex_lock(&t->lock);
    *flag = value;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void *run(void *argument) {
    own_thread *t = argument;
    pthread_setname_np(pthread_self(), t->name);
    for (double wait = t->first; wait > 0;) {
        int how = wait_for(t, &t->stopping, wait);
        if (how == AT_ONCE) break;
        wait = t->work(how == LAST_CALL);
        if (how == LAST_CALL) break;
    }
    set(t, &t->ended, 1);
    return NULL;
}

/* Start a thread that calls `work` after `first` seconds. Returns NULL if none can be started. */
EXPORT void *ss_thread_start(work *does, const char *name, double first) {
    own_thread *t = calloc(1, sizeof *t);
    pthread_condattr_t clock;
    if (!t) return NULL;
    t->work = does;
    t->first = first;
    strncpy(t->name, name, NAME - 1);
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (pthread_create(&t->thread, NULL, run, t)) {
        free(t);
        return NULL;
    }
    return t;
}

/* Let the thread end, after a call for the last time if `last`. */
EXPORT void ss_thread_stop(void *thread, int last) {
    set(thread, &((own_thread *)thread)->stopping, last ? LAST_CALL : AT_ONCE);
}

/* Wait `seconds` at most for the thread to end; if it has, it is gone, and 1 is returned. */
EXPORT int ss_thread_join(void *thread, double seconds) {
    own_thread *t = thread;
    if (!wait_for(t, &t->ended, seconds)) return 0;
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    return 1;
}
#else
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
EXPORT void *ss_thread_start(double (*does)(int), const char *name, double first) {
    return (void)does, (void)name, (void)first, (void *)0;
}
EXPORT void ss_thread_stop(void *thread, int last) { (void)thread, (void)last; }
EXPORT int ss_thread_join(void *thread, double seconds) { return (void)thread, (void)seconds, 1; }
#endif
