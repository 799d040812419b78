// One recording, the threads that take part in it, and the thread that writes it down.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "chunks.h"

namespace stepscope {

// A recording: made, begun, ended, settled, deleted; all of these by one thread at a time.
class Session {
  public:
    // file: where blocks are appended; owned. most: chunks. torch_thread: gives torch's number of the calling thread.
    Session(int file, uint32_t most, uint64_t (*torch_thread)());
    ~Session();
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    // Append a block; not while the writer runs. Returns 0, or the system's error number.
    int append(const void *payload, size_t length);
    // Let threads record. Returns 0, EBUSY where another session records, EAGAIN where no thread can be started.
    int begin();
    // No thread records any more when this returns: some microseconds.
    void end();
    // Wait until the writer has written everything. False: it takes longer than this.
    bool settle(double seconds);

    // A log for the calling thread; nullptr where there is no memory. Only while this session is the one that records.
    std::shared_ptr<Log> attach();
    // Names that have been remembered by their owners are not to be trusted any more.
    void forget_names();

    // From now on, operators are recorded at this rate: what a sample needs to be understood.
    void note_rate(double rate);

    // What happened so far: bytes in the file, operators dropped, the system's number of the error that ended writing.
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
    void write_clock();
    void write_rates();
    void write_block(const void *head, size_t head_length, const void *content, size_t length);

    const int file_;
    uint64_t (*const torch_thread_)();
    Pool pool_;
    std::mutex logs_mutex_;
    std::vector<std::shared_ptr<Log>> logs_;  // of threads that take part
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
    std::vector<Rate> rates_, rates_taken_;  // since the writer's last look; the writer's

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false, done_ = true;
    std::thread writer_;
};

// The log of the calling thread in the recording that goes on, and in the last one where none does; it lives at least as
// long as it stands here. Null before the first. Plain memory, not thread_local: no function is asked whether it was
// made; and read without a call of the loader's, for which every process has room to spare (64 bits of a kilobyte that
// is kept for this).
#if defined(__x86_64__)
extern __thread Log *own_log __attribute__((tls_model("initial-exec")));
#else
extern __thread Log *own_log;
#endif

// Whether a session records.
extern std::atomic<bool> recording;

// A log of the session that records for the calling thread, which is then inside; nullptr where there is none.
Log *join();

// Until Log::leave, the recording of the log that this returns cannot go away. nullptr where nobody records, and then
// there is nothing to leave.
inline Log *enter() {
    Log *log = own_log;
    if (__builtin_expect(log && log->enter(), 1)) return log;
    return recording.load(std::memory_order_relaxed) ? join() : nullptr;
}

// Tell the session that records, if one does: see Session::forget_names.
void forget_names();

}  // namespace stepscope
