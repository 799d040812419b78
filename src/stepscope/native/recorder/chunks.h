// Chunks of words, the pool that they come from, and the log of one thread in one recording.
//
// A thread writes into its own chunk and publishes its position; the writer (writer.cpp) reads up to there. Full chunks
// form a linked list that the writer consumes. Lock-free: one producer and one consumer for each list.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "definitions.h"
#include "words.h"

namespace stepscope {

// 256 KiB: some 11,000 operators.
constexpr uint32_t CHUNK_WORDS = 32768;
// Free chunks kept ready: what a thread with the shortest operators fills between two passes of the writer.
constexpr uint32_t SPARE_CHUNKS = 6;
// Maximum of words of one event with its definitions.
constexpr uint32_t EVENT_WORDS = (MOST_TEXT + MOST_INPUTS) / 7 + 16;

struct Calls;  // see python.h

struct Chunk {
    std::atomic<Chunk *> next;     // set when this chunk is full
    uint32_t count;                // words, valid once the chunk is full; before that, see Log::published
    uint32_t number, dropped;      // set before the chunk is published
    uint32_t written;              // owned by the writer: words already in the file
    uint32_t index;                // owned by the pool
    std::atomic<uint32_t> below;   // owned by the pool
    uint64_t words[CHUNK_WORDS];
};

// A lock-free stack of free chunks, with a limit on the number of chunks.
class Pool {
  public:
    explicit Pool(uint32_t most);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Take a chunk; nullptr if all are in use.
    Chunk *take();
    void give(Chunk *chunk);
    // Allocate chunks until so many are free, up to the limit, so that the recording threads never wait for page
    // faults.
    void stock(uint32_t free);

  private:
    Chunk *make();

    const uint32_t most_;
    std::unique_ptr<std::atomic<Chunk *>[]> chunks_;
    std::atomic<uint32_t> made_{0};
    // Low half: index of the top chunk + 1. High half: a counter that changes with every push and pop, so that a
    // compare-and-swap fails if another thread has popped and pushed the same chunk in between (the ABA problem).
    std::atomic<uint64_t> top_{0};
    std::atomic<int32_t> free_{0};
};

// What one thread writes in one recording. Only the thread itself uses a member, unless its comment says otherwise.
//
// Between two operators a program touches more memory than the L1 and L2 caches hold, so the cost of an event is the
// number of cache lines it touches. The members that every event needs share one line.
class alignas(128) Log {
  public:
    // Depth of the stack of open operators; deeper ones get an identity instead.
    static constexpr uint32_t MOST_OPEN = 512;

    // OPEN: the thread may record. STALE: it may, after it has dropped the names that it caches by owner.
    enum State : uint8_t { OPEN, STALE, CLOSED };

    Log(Pool &pool, uint64_t torch_thread);
    ~Log();

    // Called by the thread only: see `enter` (session.h).
    bool enter() {
        busy_.store(1, std::memory_order_relaxed);
        // Dekker's pattern: this thread stores `busy`, then loads the state; Session::end stores the state, then loads
        // `busy`. One of the two must see the other's store, or the session would end under a thread that writes.
        // Session::end runs a memory barrier on every processor (membarrier) between its two accesses, so here a
        // compiler barrier suffices, which costs nothing.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__builtin_expect(state_.load(std::memory_order_acquire) == OPEN, 1)) return true;
        leave();
        return false;
    }
    void leave() { busy_.store(0, std::memory_order_release); }
    // From STALE to OPEN, without cached names; false if the log is closed.
    bool refresh();

    // Thread-safe.
    void close() { state_.store(CLOSED, std::memory_order_seq_cst); }
    void make_stale() {
        State open = OPEN;
        state_.compare_exchange_strong(open, STALE, std::memory_order_release, std::memory_order_relaxed);
    }
    bool busy() const { return busy_.load(std::memory_order_acquire); }
    // Number of published words of the chunk that the thread writes into; 0 for any other chunk.
    uint32_t published(const Chunk &chunk) const {
        const uint64_t *end = published_.load(std::memory_order_acquire);
        bool inside = end > chunk.words && end <= chunk.words + CHUNK_WORDS;
        return inside ? uint32_t(end - chunk.words) : 0;
    }

    // Make room for an event. False if all chunks wait for the disk: the event is dropped and counted.
    bool ready() {
        if (__builtin_expect(at_ < limit_, 1)) return true;
        return next_chunk();
    }
    void put(uint64_t w) { *at_++ = w; }
    void publish() {
        published_.store(at_, std::memory_order_release);
        __builtin_prefetch(at_ + 8, 1);  // the next cache line, for the next event
    }
    void drop() {
        dropped_++;
        lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // Return the number of a definition within this chunk; write the definition if the chunk lacks it.
    uint32_t define(Definition sort, const void *content, size_t length);
    // Define a name. One of more than MOST_TEXT bytes is cut; its length and a checksum keep it distinct.
    uint32_t define_name(std::string_view name);
    // Return the cached number of a name in this chunk by the address of its owner; 0 on a miss. The owner must live
    // for ever, or call make_stale before it is freed: otherwise a new owner at that address would get the old name.
    uint32_t name_of(const void *owner) const {
        const Name *place = names_ + place_of(owner);
        for (int i = 0; i < 2; i++)
            if (place[i].owner == owner && place[i].chunk == number_) return place[i].number;
        return 0;
    }
    void remember_name(const void *owner, uint32_t number) {
        Name *place = names_ + place_of(owner);
        place[1] = place[0];
        place[0] = Name{owner, number_, number};
    }
    // Return the cached number of a content by its hash in this chunk; 0 on a miss.
    uint32_t recall(uint64_t key) const {
        const uint32_t *known = definitions_.find(mixed(key));
        return known ? *known : 0;
    }
    void remember(uint64_t key, uint32_t number) { definitions_.add(mixed(key), number); }

    void push(const void *operation) { open_[depth_++] = operation; }
    bool has_place() const { return depth_ < MOST_OPEN; }
    uint32_t depth() const { return depth_; }
    // Pop an operator if it is the innermost one.
    bool pop(const void *operation) {
        if (__builtin_expect(!depth_ || open_[depth_ - 1] != operation, 0)) return false;
        depth_--;
        return true;
    }
    // Remove an operator from the stack; return how many lie further in (0 for the innermost), -1 if it is not there.
    int32_t remove(const void *operation) { return pop(operation) ? 0 : remove_inner(operation); }

  private:
    struct Name {
        const void *owner;
        uint32_t chunk, number;
    };
    static constexpr uint32_t NAME_BITS = 8;
    static constexpr uint64_t MIXER = UINT64_C(0x9E3779B97F4A7C15);

    // Two-way set: the candidates are adjacent.
    static uint32_t place_of(const void *owner) {
        return uint32_t(uint64_t(reinterpret_cast<uintptr_t>(owner)) * MIXER >> (64 - NAME_BITS)) & ~1u;
    }
    static uint64_t mixed(uint64_t key) { return key * MIXER ^ key >> 32 ^ UINT64_C(1) << 63; }

    bool next_chunk();
    int32_t remove_inner(const void *operation);
    uint32_t write_definition(Definition sort, const void *content, size_t length);

    // The cache line that every event touches. An event begins before `limit_`.
    std::atomic<uint8_t> busy_{0};
    std::atomic<State> state_{OPEN};
    uint32_t depth_ = 0;
    uint32_t number_ = 0;  // of the chunk, + 1
    uint64_t *at_ = nullptr, *limit_ = nullptr;
    std::atomic<uint64_t *> published_{nullptr};
    Definitions definitions_;

  public:
    // The adjacent cache line, which the processor prefetches with it. The Python calls that the thread is in, where
    // their lines are recorded; and the innermost operators.
    alignas(64) Calls *calls = nullptr;

  private:
    const void *open_[MOST_OPEN];
    Name names_[1u << NAME_BITS] = {};

  public:
    // Set inside a call of our own functions: operators that they call do not belong to the program.
    const void *hidden = nullptr;

  private:
    Chunk *chunk_ = nullptr;
    Pool &pool_;
    uint32_t dropped_ = 0, refused_ = 0;
    uint32_t defined_[3] = {0, 0, 0};

  public:
    // Used by the writer.
    uint32_t number = 0;  // set before the log is published
    const uint32_t native_thread;
    const uint64_t ident, torch_thread;
    std::atomic<Chunk *> first{nullptr};   // set once, by the thread
    std::atomic<bool> ended{false};        // set last, by the thread
    std::atomic<uint64_t> lost{0};         // operators dropped, in all
    Chunk *reading = nullptr;              // owned by the writer
    bool named = false;                    // owned by the writer
};

}  // namespace stepscope
