// The recorder for Python (ctypes). Functions return 0, or the system's number of an error; nothing is thrown.
#include <cerrno>
#include <exception>
#include <new>

#include "clock.h"
#include "observer.h"
#include "python.h"
#include "session.h"

using stepscope::Session;

#pragma GCC visibility push(default)
extern "C" {

// Changes whenever a function here does.
int ssr_version() { return 3; }

// Whether ticks are those of the time stamp counter, else ns of CLOCK_MONOTONIC.
int ssr_ticks_are_tsc() { return stepscope::ticks_are_tsc; }

uint64_t ssr_chunk_words() { return stepscope::CHUNK_WORDS; }

// A recording into an open file, which it closes, with so many bytes of memory at most. NULL: no memory.
Session *ssr_new(int file, uint64_t memory) {
    uint64_t most = memory / sizeof(stepscope::Chunk);
    try {
        return new Session(file, most < 4 ? 4 : uint32_t(most), stepscope::torch_thread);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

int ssr_append(Session *session, const void *payload, uint64_t length) { return session->append(payload, length); }

int ssr_begin(Session *session, int inputs, int memory, double fraction) {
    int error = session->begin();
    if (error) return error;
    if (fraction < 1) session->note_rate(fraction);
    try {
        stepscope::observe(inputs, memory, fraction);
    } catch (const std::exception &) {
        stepscope::ignore();
        session->end();
        return EINVAL;
    }
    return 0;
}

// Of a sample: what it has of the operators from now on; 0 for nothing, 1 for everything.
int ssr_listen(Session *session, double fraction) {
    try {
        stepscope::listen(fraction);
    } catch (const std::exception &) {
        return EINVAL;
    }
    session->note_rate(fraction);
    return 0;
}

// Holds the caller for some microseconds; what is left to write is written meanwhile.
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

// After ssr_begin and before ssr_end, with Python's lock. What is watched: see python.h.
int ssr_watch_python(const stepscope::PythonCalls *calls) { return stepscope::watch_python(*calls); }
void ssr_watch_thread() { stepscope::watch_thread(); }
void ssr_ignore_python() { stepscope::ignore_python(); }

void ssr_end_memory() { stepscope::ignore_memory(); }

// After ssr_end: 0 where everything is written, ETIMEDOUT where that takes longer.
int ssr_settle(Session *session, double seconds) { return session->settle(seconds) ? 0 : ETIMEDOUT; }

uint64_t ssr_bytes(const Session *session) { return session->bytes(); }
uint64_t ssr_lost(const Session *session) { return session->lost(); }
int ssr_error(const Session *session) { return session->error(); }

// After ssr_settle, or where the session never began.
void ssr_delete(Session *session) { delete session; }

// In a forked child: what it inherited records nothing by itself; this takes it out of torch.
void ssr_forget() {
    try {
        stepscope::ignore();
    } catch (const std::exception &) {
        return;  // it stays, and does nothing
    }
}

}  // extern "C"
#pragma GCC visibility pop
