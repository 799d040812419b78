/* SIGTERM and SIGHUP to a training that has not asked for them: the process lives for a moment longer, in which another
 * thread closes the recording, and then dies of the signal. stepscope/collect/session/signals.py starts and ends it.
 *
 * Python's own handlers would not do. They run on the main thread, between two bytecodes: a training that hangs in a
 * collective would no longer die. And `signal.getsignal` would show them to a program that asks whether a signal is
 * free. A program that sends the signal to itself goes no further, as without stepscope: it dies at once.
 */
#ifdef __linux__
#define _XOPEN_SOURCE 700

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { LAST = 31 };

static volatile sig_atomic_t watching, arrived;
static timer_t limit;
static struct itimerspec patience;
static pid_t owner;

static void die_of(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);
}

static void handle(int number, siginfo_t *info, void *context) {
    int error = errno, own = info->si_code <= 0 && info->si_code != SI_TIMER && info->si_pid == owner;
    (void)context;
    if (getpid() == owner && watching && !arrived && !own) {
        arrived = number;
        timer_settime(limit, 0, &patience, NULL);
    } else /* a fork, a second signal, the limit, the program's own signal to itself, or after the watch: now */
        die_of(getpid() == owner && arrived ? arrived : number);
    errno = error;
}

/* Let a signal wait for `seconds` at most. Returns 0 if it does what it did: it is handled or ignored, also as the
 * kernel does for the first process of a container, or cannot be watched.
 */
EXPORT int ss_termination_watch(int number, int seconds) {
    struct sigevent again = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, now;
    if (getpid() == 1 || sigaction(number, NULL, &now) || now.sa_handler != SIG_DFL)
        return 0;
    if (owner != getpid() && timer_create(CLOCK_MONOTONIC, &again, &limit))
        return 0;
    owner = getpid();
    patience.it_value.tv_sec = seconds;
    sigemptyset(&ours.sa_mask);
    watching = 1;
    return sigaction(number, &ours, NULL) == 0;
}

/* Let a signal that Python has handled wait as one from outside does. Returns 0 if it is not watched. */
EXPORT int ss_termination_pass(int number) {
    struct sigaction now;
    if (getpid() != owner || !watching || arrived || sigaction(number, NULL, &now) || now.sa_sigaction != handle)
        return 0;
    arrived = number;
    timer_settime(limit, 0, &patience, NULL);
    return 1;
}

/* Return the signal that waits; 0: none. */
EXPORT int ss_termination_waiting(void) { return getpid() == owner ? arrived : 0; }

/* End the watch: the process dies of the signal that waits. */
EXPORT void ss_termination_end(void) {
    struct sigaction now;
    if (getpid() != owner)
        return;
    watching = 0;
    for (int number = 1; number <= LAST; number++)
        if (sigaction(number, NULL, &now) == 0 && now.sa_sigaction == handle)
            signal(number, SIG_DFL);
    if (arrived)
        die_of(arrived);
}

static char last_words[512];
static int stream, code;

static void say(int number) {
    (void)number;
    _exit(write(stream, last_words, strlen(last_words)) < 0 ? code : code);
}

/* Let a library that aborts say `text` on a descriptor, and the process end with an exit code instead. */
EXPORT void ss_termination_abort(int on, const char *text, int exit_code) {
    strncpy(last_words, text, sizeof last_words - 1);
    stream = on, code = exit_code;
    signal(SIGABRT, say);
}
#else
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
EXPORT int ss_termination_watch(int number, int seconds) { return (void)number, (void)seconds, 0; }
EXPORT int ss_termination_pass(int number) { return (void)number, 0; }
EXPORT int ss_termination_waiting(void) { return 0; }
EXPORT void ss_termination_end(void) {}
EXPORT void ss_termination_abort(int on, const char *text, int exit_code) { (void)on, (void)text, (void)exit_code; }
#endif
