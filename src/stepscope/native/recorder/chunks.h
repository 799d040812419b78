// Chunks of words, the pool that they come from, and the log of one thread in one recording.
//
// A thread writes into its own chunk and publishes how far it has come; the writer (writer.h) reads up to there. Full
// chunks hang behind each other in a list from which the writer takes them: nobody waits for anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "definitions.h"
#include "words.h"

namespace stepscope {

// 256 KiB: some 11,000 operators.
constexpr uint32_t CHUNK_WORDS = 32768;
// Free chunks that are kept ready: what a thread of the shortest operators fills between two looks of the writer.
constexpr uint32_t SPARE_CHUNKS = 6;
// Words of one event with its definitions, at most.
constexpr uint32_t EVENT_WORDS = (MOST_TEXT + MOST_INPUTS) / 7 + 16;

struct Chunk {
    std::atomic<Chunk *> next;     // set when this one is full
    uint32_t count;                // of words, then; before, the log knows (Log::published)
    uint32_t number, dropped;      // written before the chunk can be seen
    uint32_t written;              // the writer's: words that are in the file
    uint32_t index;                // the pool's
    std::atomic<uint32_t> below;   // the pool's
    uint64_t words[CHUNK_WORDS];
};

// A stack of free chunks without locks, and a limit to how many there are.
class Pool {
  public:
    explicit Pool(uint32_t most);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // A chunk; nullptr where all are in use.
    Chunk *take();
    void give(Chunk *chunk);
    // Make chunks until so many are free, as far as the limit allows: the threads that record shall not wait for the
    // system to find them memory.
    void stock(uint32_t free);

  private:
    Chunk *make();

    const uint32_t most_;
    std::unique_ptr<std::atomic<Chunk *>[]> chunks_;
    std::atomic<uint32_t> made_{0};
    // Index + 1 of the top, and above it a number that changes whenever the top does.
    std::atomic<uint64_t> top_{0};
    std::atomic<int32_t> free_{0};
};

// What one thread writes in one recording. Members are the thread's but where it says otherwise.
//
// Between two operators, a program goes through more memory than the caches nearest to the processor hold: what counts
// is how many lines of memory an event touches. So everything that all of them need is in one.
class alignas(128) Log {
  public:
    // Operators open at once; more get an identity instead of a place on the stack.
    static constexpr uint32_t MOST_OPEN = 512;

    // OPEN while the thread may record; STALE where, before that, it must forget the names it knows by their owners.
    enum State : uint8_t { OPEN, STALE, CLOSED };

    Log(Pool &pool, uint64_t torch_thread);
    ~Log();

    // The thread's: it comes in, as `enter` (session.h) says, and goes out.
    bool enter() {
        busy_.store(1, std::memory_order_relaxed);
        // Session::end makes every thread pass a barrier (membarrier) between its store to the state and its look at
        // `busy`; so here only the compiler must keep the order.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__builtin_expect(state_.load(std::memory_order_acquire) == OPEN, 1)) return true;
        leave();
        return false;
    }
    void leave() { busy_.store(0, std::memory_order_release); }
    // Open again, without names; false where it is closed.
    bool refresh();

    // Anybody's.
    void close() { state_.store(CLOSED, std::memory_order_seq_cst); }
    void make_stale() {
        State open = OPEN;
        state_.compare_exchange_strong(open, STALE, std::memory_order_release, std::memory_order_relaxed);
    }
    bool busy() const { return busy_.load(std::memory_order_acquire); }
    // Words of a chunk that may be read, of the one that is written into; 0 for others.
    uint32_t published(const Chunk &chunk) const {
        const uint64_t *end = published_.load(std::memory_order_acquire);
        bool inside = end > chunk.words && end <= chunk.words + CHUNK_WORDS;
        return inside ? uint32_t(end - chunk.words) : 0;
    }

    // Make sure that an event fits. False: all chunks wait for the disk, the event is dropped.
    bool ready() {
        if (__builtin_expect(at_ < limit_, 1)) return true;
        return next_chunk();
    }
    void put(uint64_t w) { *at_++ = w; }
    void publish() {
        published_.store(at_, std::memory_order_release);
        __builtin_prefetch(at_ + 8, 1);  // the line behind this one: it is there when the next event is
    }
    void drop() {
        dropped_++;
        lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // The number of a definition within this chunk; it is written where this chunk has not got it.
    uint32_t define(Definition sort, const void *content, size_t length);
    // The number of a name in this chunk by its owner, which lasts, or is told of (make_stale) before it goes; 0 where
    // nothing was remembered.
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
    // The number for a key that stands for some content: what was remembered for it in this chunk; 0 where nothing was.
    uint32_t recall(uint64_t key) const {
        const uint32_t *known = definitions_.find(mixed(key));
        return known ? *known : 0;
    }
    void remember(uint64_t key, uint32_t number) { definitions_.add(mixed(key), number); }

    void push(const void *operation) { open_[depth_++] = operation; }
    bool has_place() const { return depth_ < MOST_OPEN; }
    uint32_t depth() const { return depth_; }
    // Take an operator off the stack where it is the innermost one.
    bool pop(const void *operation) {
        if (__builtin_expect(!depth_ || open_[depth_ - 1] != operation, 0)) return false;
        depth_--;
        return true;
    }
    // Take an operator off the stack: how many are further in (0 for the innermost); -1 where it is not there.
    int32_t remove(const void *operation) { return pop(operation) ? 0 : remove_inner(operation); }

  private:
    struct Name {
        const void *owner;
        uint32_t chunk, number;
    };
    static constexpr uint32_t NAME_BITS = 8;
    static constexpr uint64_t MIXER = UINT64_C(0x9E3779B97F4A7C15);

    // Of two that lie beside each other.
    static uint32_t place_of(const void *owner) {
        return uint32_t(uint64_t(reinterpret_cast<uintptr_t>(owner)) * MIXER >> (64 - NAME_BITS)) & ~1u;
    }
    static uint64_t mixed(uint64_t key) { return key * MIXER ^ key >> 32 ^ UINT64_C(1) << 63; }

    bool next_chunk();
    int32_t remove_inner(const void *operation);
    uint32_t write_definition(Definition sort, const void *content, size_t length);

    // The line that every event touches. An event begins before `limit_`.
    std::atomic<uint8_t> busy_{0};
    std::atomic<State> state_{OPEN};
    uint32_t depth_ = 0;
    uint32_t number_ = 0;  // of the chunk, + 1
    uint64_t *at_ = nullptr, *limit_ = nullptr;
    std::atomic<uint64_t *> published_{nullptr};
    Definitions definitions_;
    // The line behind it, which comes with it: the innermost operators.
    alignas(64) const void *open_[MOST_OPEN];
    Name names_[1u << NAME_BITS] = {};

  public:
    // A call of our own functions that is going on: what they call is not the program's.
    const void *hidden = nullptr;

  private:
    Chunk *chunk_ = nullptr;
    Pool &pool_;
    uint32_t dropped_ = 0, refused_ = 0;
    uint32_t defined_[3] = {0, 0, 0};

  public:
    // For the writer.
    uint32_t number = 0;  // set before anybody sees the log
    const uint32_t native_thread;
    const uint64_t ident, torch_thread;
    std::atomic<Chunk *> first{nullptr};   // set once, by the thread
    std::atomic<bool> ended{false};        // set last, by the thread
    std::atomic<uint64_t> lost{0};         // operators that were dropped in all
    Chunk *reading = nullptr;              // the writer's
    bool named = false;                    // the writer's
};

}  // namespace stepscope
