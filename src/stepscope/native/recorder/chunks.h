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
class alignas(64) Log {
  public:
    // Operators open at once; more get an identity instead of a place on the stack.
    static constexpr uint32_t MOST_OPEN = 512;

    Log(Pool &pool, uint64_t torch_thread);
    ~Log();

    // Make sure that an event fits. False: all chunks wait for the disk, the event is dropped.
    bool ready() {
        if (__builtin_expect(at_ < limit_, 1)) return true;
        return next_chunk();
    }
    void put(uint64_t w) { *at_++ = w; }
    void publish() {
        chunk_->count.store(uint32_t(at_ - chunk_->words), std::memory_order_release);
        __builtin_prefetch(at_ + 8, 1);  // the line behind this one: it is there when the next event is
    }
    void drop() {
        dropped_++;
        lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    // The number of a definition within this chunk; it is written where this chunk has not got it.
    uint32_t define(Definition sort, const void *content, size_t length);
    // The same for a name that has a lasting owner, by which it is found faster.
    uint32_t define_name(const void *owner, const char *text, size_t length) {
        Name &known = names_[uint64_t(reinterpret_cast<uintptr_t>(owner)) * MIXER >> (64 - NAME_BITS)];
        if (__builtin_expect(known.is(owner, number_, text, length), 1)) return known.number;
        return define_name(owner, text, length, known);
    }
    // The same for a key that stands for some content: what was remembered for it in this chunk; 0 where nothing was.
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
    // One line of the cache. The text is compared, too: its owner can be gone, and another one be where it was.
    struct alignas(64) Name {
        const void *owner;
        uint32_t chunk, number, length;
        char text[44];

        bool is(const void *whose, uint32_t where, const char *other, size_t size) const {
            if (owner != whose || chunk != where || length != size) return false;
            for (size_t i = 0; i + 8 < size; i += 8)
                if (part(text + i) != part(other + i)) return false;
            return part(text + size - 8) == part(other + size - 8);
        }
        static uint64_t part(const char *from) {
            uint64_t eight;
            memcpy(&eight, from, 8);
            return eight;
        }
    };
    static constexpr uint32_t NAME_BITS = 8;
    static constexpr uint64_t MIXER = UINT64_C(0x9E3779B97F4A7C15);

    static uint64_t mixed(uint64_t key) { return key * MIXER ^ key >> 32 ^ UINT64_C(1) << 63; }

    bool next_chunk();
    int32_t remove_inner(const void *operation);
    uint32_t define_name(const void *owner, const char *text, size_t length, Name &place);
    uint32_t write_definition(Definition sort, const void *content, size_t length);

    // What every event touches comes first. An event begins before `limit_`.
    uint64_t *at_ = nullptr, *limit_ = nullptr;
    Chunk *chunk_ = nullptr;
    uint32_t depth_ = 0;
    uint32_t number_ = 0;  // of the chunk, + 1
    std::unique_ptr<Name[]> names_;
    Definitions definitions_;

  public:
    // A call of our own functions that is going on: what they call is not the program's.
    const void *hidden = nullptr;

  private:
    const void *open_[MOST_OPEN];
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
