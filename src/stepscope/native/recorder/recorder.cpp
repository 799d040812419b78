// The recorder's interface for ctypes. Functions return 0 or an errno, and never throw.
#include <cerrno>
#include <exception>
#include <new>

#include "clock.h"
#include "observer.h"
#include "python.h"
#include "session.h"
#include "targets.h"

using stepscope::Session;

#pragma GCC visibility push(default)
extern "C" {

// Version of this interface: changes with every function here.
int ssr_version() { return 6; }

// Whether ticks are those of the time stamp counter, else ns of CLOCK_MONOTONIC.
int ssr_ticks_are_tsc() { return stepscope::ticks_are_tsc; }

uint64_t ssr_chunk_words() { return stepscope::CHUNK_WORDS; }

// Make a recording into an open file, which it owns, with at most so many bytes of memory. NULL if out of memory.
Session *ssr_new(int file, uint64_t memory) {
    uint64_t most = memory / sizeof(stepscope::Chunk);
    try {
        return new Session(file, most < 4 ? 4 : uint32_t(most), stepscope::torch_thread);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

int ssr_append(Session *session, const void *payload, uint64_t length) { return session->append(payload, length); }

// inputs: a value of stepscope::Noted.
int ssr_begin(Session *session, int inputs, int memory, double fraction) {
    int error = session->begin();
    if (error) return error;
    if (fraction < 1) session->note_rate(fraction);
    try {
        stepscope::observe(stepscope::Noted(inputs), memory, fraction);
    } catch (const std::exception &) {
        stepscope::ignore();
        session->end();
        return EINVAL;
    }
    return 0;
}

// Set the fraction of the operators that is recorded: 0 none, 1 all.
int ssr_listen(Session *session, double fraction) {
    try {
        stepscope::listen(fraction);
    } catch (const std::exception &) {
        return EINVAL;
    }
    session->note_rate(fraction);
    return 0;
}

// End recording; takes some microseconds. The writer writes the rest in the background.
int ssr_end(Session *session) {
    int error = 0;
    try {
        stepscope::ignore();
    } catch (const std::exception &) {
        error = EINVAL;
    }
    session->end();
    return error;
}

// With the GIL held; the first two between ssr_begin and ssr_end, the last one after ssr_end. Arguments: see python.h.
int ssr_watch_python(const stepscope::PythonCalls *calls) { return stepscope::watch_python(*calls); }
void ssr_watch_thread() { stepscope::watch_thread(); }
void ssr_ignore_python() { stepscope::ignore_python(); }

void ssr_end_memory() { stepscope::ignore_memory(); }

// After ssr_end: 0 if everything is written, ETIMEDOUT after a timeout.
int ssr_settle(Session *session, double seconds) { return session->settle(seconds) ? 0 : ETIMEDOUT; }

// Of the recording that ended last. Numbers: classes, rows and ignored rows of each entry; `room` entries at most.
uint64_t ssr_targets(int64_t *numbers, uint64_t room) {
    static_assert(sizeof(stepscope::Targets) == 3 * sizeof(int64_t));
    return stepscope::counted_targets(reinterpret_cast<stepscope::Targets *>(numbers), room);
}

uint64_t ssr_bytes(const Session *session) { return session->bytes(); }
uint64_t ssr_lost(const Session *session) { return session->lost(); }
int ssr_error(const Session *session) { return session->error(); }

// After ssr_settle, or if the session never began.
void ssr_delete(Session *session) { delete session; }

// In a forked child: remove the inherited callbacks, which record nothing, from torch.
void ssr_forget() {
    try {
        stepscope::ignore();
    } catch (const std::exception &) {
        return;  // it stays, and does nothing
    }
}

}  // extern "C"
#pragma GCC visibility pop
