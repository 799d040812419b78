#include "chunks.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace stepscope {

Pool::Pool(uint32_t most) : most_(most), chunks_(new std::atomic<Chunk *>[most]) {
    for (uint32_t i = 0; i < most; i++) chunks_[i].store(nullptr, std::memory_order_relaxed);
}

Pool::~Pool() {
    for (uint32_t i = 0; i < most_; i++) delete chunks_[i].load(std::memory_order_relaxed);
}

Chunk *Pool::make() {
    uint32_t index = made_.load(std::memory_order_relaxed);
    do {
        if (index >= most_) return nullptr;
    } while (!made_.compare_exchange_weak(index, index + 1, std::memory_order_relaxed));
    auto *chunk = new (std::nothrow) Chunk;  // words are left as they are
    if (!chunk) return nullptr;              // the place stays empty: as good as in use
    chunk->index = index;
    chunks_[index].store(chunk, std::memory_order_release);
    return chunk;
}

Chunk *Pool::take() {
    uint64_t top = top_.load(std::memory_order_acquire);
    while (uint32_t(top)) {
        Chunk *chunk = chunks_[uint32_t(top) - 1].load(std::memory_order_acquire);
        uint64_t below = chunk->below.load(std::memory_order_relaxed) | ((top >> 32) + 1) << 32;
        if (top_.compare_exchange_weak(top, below, std::memory_order_acq_rel, std::memory_order_acquire)) return chunk;
    }
    return make();
}

void Pool::give(Chunk *chunk) {
    uint64_t top = top_.load(std::memory_order_relaxed), with;
    do {
        chunk->below.store(uint32_t(top), std::memory_order_relaxed);
        with = uint64_t(chunk->index + 1) | ((top >> 32) + 1) << 32;
    } while (!top_.compare_exchange_weak(top, with, std::memory_order_acq_rel, std::memory_order_relaxed));
}

Log::Log(Pool &pool, uint64_t torch_thread)
    : native_thread(uint32_t(syscall(SYS_gettid))),
      ident(uint64_t(pthread_self())),
      torch_thread(torch_thread),
      pool_(pool),
      entries_(new Entry[ENTRIES]()) {}

Log::~Log() = default;

bool Log::next_chunk() {
    // Where all chunks wait for the disk, not every operator asks again.
    if (refused_ && refused_++ % 64) return false;
    Chunk *chunk = pool_.take();
    if (!chunk) {
        refused_ += !refused_;
        used_ = CHUNK_WORDS;  // nothing more goes into this one, even where a shorter event would fit
        return false;
    }
    refused_ = 0;
    chunk->next.store(nullptr, std::memory_order_relaxed);
    chunk->number = chunks_++;
    chunk->dropped = dropped_;
    chunk->written = 0;
    dropped_ = 0;
    chunk->words[0] = word(DEPTH, depth_);
    chunk->count.store(1, std::memory_order_relaxed);
    memset(defined_, 0, sizeof defined_);
    (chunk_ ? chunk_->next : first).store(chunk, std::memory_order_release);
    chunk_ = chunk;
    used_ = 1;
    return true;
}

int32_t Log::remove_inner(const void *operation) {
    for (uint32_t inside = 1; inside < depth_; inside++) {
        const void **place = open_ + depth_ - 1 - inside;
        if (*place != operation) continue;
        memmove(place, place + 1, inside * sizeof *place);
        depth_--;
        return int32_t(inside);
    }
    return -1;
}

uint32_t Log::write_definition(Definition sort, const void *content, size_t length) {
    uint32_t number = defined_[sort];
    if (number >= (sort == DEFINE_NAME ? MOST_NAMES : MOST_DEFINITIONS)) return 0;
    defined_[sort] = ++number;
    put(word(DEFINE, uint64_t(sort) << 56 | uint64_t(number) << 32 | length));
    auto *from = static_cast<const char *>(content);
    for (size_t at = 0; at < length; at += 7) {
        uint64_t raw = 0;
        memcpy(&raw, from + at, length - at < 7 ? length - at : 7);
        put(word(RAW, raw));
    }
    return number;
}

static uint64_t part_of(const char *from, size_t length) {
    uint64_t part = 0;
    if (length >= 8) {
        memcpy(&part, from, 8);
    } else if (length >= 4) {
        uint32_t low, high;
        memcpy(&low, from, 4), memcpy(&high, from + length - 4, 4);
        part = uint64_t(high) << 32 | low;
    } else {
        for (size_t i = 0; i < length; i++) part = part << 8 | uint8_t(from[i]);
    }
    return part;
}

static uint64_t hash_of(const void *content, size_t length, uint64_t seed) {
    constexpr uint64_t k = UINT64_C(0x9E3779B97F4A7C15);
    auto *p = static_cast<const char *>(content), *end = p + length;
    uint64_t h = (seed << 32 ^ length) * k;
    for (; end - p > 8; p += 8) h = (h ^ part_of(p, 8)) * k, h ^= h >> 32;
    h = (h ^ (length > 8 ? part_of(end - 8, 8) : part_of(p, length))) * k;
    return h ^ h >> 32;
}

// Entries of other chunks are as good as empty. Where there is none, what stands here is defined again when it comes back.
Log::Entry *Log::place_for(uint64_t hash) {
    for (uint32_t i = 0; i < PROBES; i++) {
        Entry *entry = &entries_[(hash + i) % ENTRIES];
        if (entry->chunk != chunk_->number + 1) return entry;
    }
    return &entries_[hash % ENTRIES];
}

uint32_t Log::define(Definition sort, const void *content, size_t length) {
    uint64_t hash = hash_of(content, length, sort);
    uint32_t here = chunk_->number + 1;
    for (uint32_t i = 0; i < PROBES; i++) {
        Entry *entry = &entries_[(hash + i) % ENTRIES];
        if (entry->chunk != here) break;
        if (entry->hash == hash) return entry->number;
    }
    Entry *place = place_for(hash);
    *place = Entry{hash, here, write_definition(sort, content, length)};
    return place->number;
}

}  // namespace stepscope
