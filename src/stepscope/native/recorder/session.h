// One recording, the threads that record into it, and the thread that writes the file.
#pragma once

#include <pthread.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "chunks.h"
#include "clock.h"

namespace stepscope {

// A recording: constructed, begun, ended, settled, deleted, by one thread at a time. Not locked against itself: two
// threads in begin() or end() of one session would race for writer_.
class Session {
  public:
    // file: descriptor that blocks are appended to; owned. most: limit of chunks. torch_thread: returns torch's number
    // of the calling thread.
    Session(int file, uint32_t most, uint64_t (*torch_thread)());
    ~Session();
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    // Append a block. Not while the writer runs: the blocks would interleave. Returns 0 or an errno.
    int append(const void *payload, size_t length);
    // Let threads record. Returns 0, EBUSY if another session records, EAGAIN if no thread can be started.
    int begin();
    // Stop all threads from recording; takes some microseconds. When it returns, no thread writes into a log.
    void end();
    // Wait until the writer has written everything; false after a timeout.
    bool settle(double seconds);

    // Make a log for the calling thread; nullptr if memory is exhausted. Only while this session records.
    std::shared_ptr<Log> attach();
    // Invalidate the names that logs cache by the address of their owner.
    void forget_names();

    // Note the fraction of the operators that is recorded from here on; the reader scales a sample by it.
    void note_rate(double rate);

    // So far: bytes in the file, operators dropped, errno of the error that ended writing.
    uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
    int error() const { return error_.load(std::memory_order_relaxed); }

  private:
    void wait_for_all_to_leave();
    void run();
    void pass(bool all, bool last);
    bool write_log(Log &log, bool all, bool last);
    void write_chunk(Log &log, Chunk &chunk, uint32_t count);
    void write_thread(Log &log);
    void write_clock(const Moment &moment);
    void write_rates();
    void write_block(const void *head, size_t head_length, const void *content, size_t length);

    // A program may close all files that it does not know. Its next one gets the number of ours, and is not written to.
    bool file_is_ours() const;

    const int file_;
    struct stat opened_{};
    uint64_t (*const torch_thread_)();
    Pool pool_;
    std::mutex logs_mutex_;
    std::vector<std::shared_ptr<Log>> logs_;  // of the threads that record
    uint32_t threads_ = 0;
    std::vector<Log *> seen_;
    uint64_t lost_before_ = 0;
    std::atomic<uint64_t> bytes_{0}, lost_{0};
    std::atomic<int> error_{0};
    uint32_t blocks_ = 0;
    int64_t size_ = 0;

    struct Rate {
        uint64_t ticks;
        double rate;
    };
    std::vector<Rate> rates_, rates_taken_;  // since the writer's last pass; taken by the writer

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false, done_ = true;
    std::thread writer_;
};

// The calling thread's log in the current recording, or in the last one; nullptr before the first. AtThreadEnd holds a
// reference, so the pointer is never dangling. __thread, not thread_local: no initialisation check on access. Model
// initial-exec: no call into the loader; it takes 8 bytes of the static TLS surplus that glibc reserves.
#if defined(__x86_64__)
extern __thread Log *own_log __attribute__((tls_model("initial-exec")));
#else
extern __thread Log *own_log;
#endif

// Whether a session records.
extern std::atomic<bool> recording;

// Attach the calling thread to the current session and enter its log; nullptr if no session records.
Log *join();

// Enter the calling thread's log: until Log::leave, its recording cannot end. nullptr if nothing records; do not leave
// then. Lock-free: Log::enter and Session::end agree by `busy` and a barrier, see Log::enter.
inline Log *enter() {
    Log *log = own_log;
    if (__builtin_expect(log && log->enter(), 1)) return log;
    return recording.load(std::memory_order_relaxed) ? join() : nullptr;
}

// Call Session::forget_names of the current session, if any.
void forget_names();

}  // namespace stepscope
