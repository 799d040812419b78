// Chunks of words, the pool that they come from, and the log of one thread in one recording.
//
// A thread writes into its own chunk and publishes how far it has come; the writer (writer.h) reads up to there. Full
// chunks hang behind each other in a list from which the writer takes them: nobody waits for anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "words.h"

namespace stepscope {

// 256 KiB: some 11,000 operators.
constexpr uint32_t CHUNK_WORDS = 32768;
// Words of one event with its definitions, at most.
constexpr uint32_t EVENT_WORDS = (MOST_TEXT + MOST_INPUTS) / 7 + 16;

struct Chunk {
    std::atomic<uint32_t> count;   // words that may be read
    std::atomic<Chunk *> next;     // set when this one is full
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

  private:
    Chunk *make();

    const uint32_t most_;
    std::unique_ptr<std::atomic<Chunk *>[]> chunks_;
    std::atomic<uint32_t> made_{0};
    // Index + 1 of the top, and above it a number that changes whenever the top does.
    std::atomic<uint64_t> top_{0};
};

// What one thread writes in one recording. Members are the thread's but where it says otherwise.
class Log {
  public:
    // Operators open at once; more get an identity instead of a place on the stack.
    static constexpr uint32_t MOST_OPEN = 512;

    Log(Pool &pool, uint64_t torch_thread);
    ~Log();

    // Make sure that an event fits. False: all chunks wait for the disk, the event is dropped.
    bool ready() {
        if (__builtin_expect(chunk_ && used_ + EVENT_WORDS <= CHUNK_WORDS, 1)) return true;
        return next_chunk();
    }
    void put(uint64_t w) { chunk_->words[used_++] = w; }
    void publish() { chunk_->count.store(used_, std::memory_order_release); }
    void drop() {
        dropped_++;
        lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // The number of a definition within this chunk; it is written where this chunk has not got it.
    uint32_t define(Definition sort, const void *content, size_t length);
    // The same for a key that stands for some content: what was remembered for it in this chunk; 0 where nothing was.
    uint32_t recall(uint64_t key) const {
        uint64_t hash = mixed(key);
        for (uint32_t i = 0; i < PROBES; i++) {
            const Entry &entry = entries_[(hash + i) % ENTRIES];
            if (entry.chunk != chunk_->number + 1) return 0;
            if (entry.hash == hash) return entry.number;
        }
        return 0;
    }
    void remember(uint64_t key, uint32_t number) { *place_for(mixed(key)) = Entry{mixed(key), chunk_->number + 1, number}; }

    void push(const void *operation) { open_[depth_++] = operation; }
    bool has_place() const { return depth_ < MOST_OPEN; }
    uint32_t depth() const { return depth_; }
    // Take an operator off the stack: how many are further in (0 for the innermost); -1 where it is not there.
    int32_t remove(const void *operation) {
        if (__builtin_expect(depth_ && open_[depth_ - 1] == operation, 1)) return depth_--, 0;
        return remove_inner(operation);
    }

    // A call of our own functions that is going on: what they call is not the program's.
    const void *hidden = nullptr;

    // For the writer.
    uint32_t number = 0;  // set before anybody sees the log
    const uint32_t native_thread;
    const uint64_t ident, torch_thread;
    std::atomic<Chunk *> first{nullptr};   // set once, by the thread
    std::atomic<bool> ended{false};        // set last, by the thread
    std::atomic<uint64_t> lost{0};         // operators that were dropped in all
    Chunk *reading = nullptr;              // the writer's
    bool named = false;                    // the writer's

  private:
    struct Entry {
        uint64_t hash;
        uint32_t chunk, number;
    };
    static constexpr uint32_t ENTRIES = 4096, PROBES = 8;

    static uint64_t mixed(uint64_t key) { return key * UINT64_C(0x9E3779B97F4A7C15) ^ key >> 32 ^ UINT64_C(1) << 63; }

    bool next_chunk();
    Entry *place_for(uint64_t hash);
    int32_t remove_inner(const void *operation);
    uint32_t write_definition(Definition sort, const void *content, size_t length);

    Pool &pool_;
    Chunk *chunk_ = nullptr;
    uint32_t used_ = 0, chunks_ = 0, depth_ = 0;
    uint32_t dropped_ = 0, refused_ = 0;
    uint32_t defined_[3] = {0, 0, 0};
    std::unique_ptr<Entry[]> entries_;
    const void *open_[MOST_OPEN];
};

}  // namespace stepscope
