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

    // The log of the calling thread.
    Log *attach();

    // From now on, operators are recorded at this rate: what a sample needs to be understood.
    void note_rate(double rate);

    // What happened so far: bytes in the file, operators dropped, the system's number of the error that ended writing.
    uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
    int error() const { return error_.load(std::memory_order_relaxed); }

  private:
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
    std::vector<std::unique_ptr<Log>> logs_;
    uint32_t threads_ = 0;
    std::vector<Log *> seen_;
    uint64_t lost_before_ = 0;
    std::atomic<uint64_t> bytes_{0}, lost_{0};
    std::atomic<int> error_{0};
    uint32_t blocks_ = 0;
    int64_t size_ = 0;
    bool ended_ = false;

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

// A thread's own place: whether it is inside the recorder, and its log. Lives as long as the thread.
struct alignas(64) Desk {
    std::atomic<uint32_t> busy{0};
    uint32_t generation = UINT32_MAX;  // of the session that the log belongs to; never 0
    Log *log = nullptr;
    Desk *before = nullptr, *behind = nullptr;
};

// Number of the session that records; 0 where none does. Never the same twice.
extern std::atomic<uint32_t> recording;

Desk *make_desk();
bool attach_desk(Desk &desk, uint32_t generation);
// Null before the first use. Plain memory, not thread_local: no function is asked whether it was made; and read without
// a call of the loader's, for which every process has room to spare (64 bits of a kilobyte that is kept for this).
#if defined(__x86_64__)
extern __thread Desk *own_desk __attribute__((tls_model("initial-exec")));
#else
extern __thread Desk *own_desk;
#endif

// Between enter and leave, the log of the calling thread cannot go away. nullptr where nobody records, and then there
// is nothing to leave.
inline Desk *enter() {
    Desk *desk = own_desk;
    if (__builtin_expect(!desk, 0) && (!recording.load(std::memory_order_relaxed) || !(desk = make_desk()))) return nullptr;
    desk->busy.store(1, std::memory_order_relaxed);
    // Session::end makes every thread pass a barrier (membarrier) between its store to `recording` and its look at
    // `busy`; so here only the compiler must keep the order.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    uint32_t generation = recording.load(std::memory_order_acquire);
    if (__builtin_expect(desk->generation == generation, 1)) return desk;
    if (generation && attach_desk(*desk, generation)) return desk;
    desk->busy.store(0, std::memory_order_release);
    return nullptr;
}

inline void leave(Desk *desk) { desk->busy.store(0, std::memory_order_release); }

}  // namespace stepscope
