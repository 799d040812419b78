#include "chunks.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "clock.h"

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
    auto *chunk = new (std::nothrow) Chunk;
    if (!chunk) return nullptr;  // the slot stays empty, which counts as in use
    for (uint32_t i = 0; i < CHUNK_WORDS; i += 512) chunk->words[i] = 0;  // page faults happen here, not in an operator
    chunk->index = index;
    chunks_[index].store(chunk, std::memory_order_release);
    return chunk;
}

Chunk *Pool::take() {
    uint64_t top = top_.load(std::memory_order_acquire);
    while (uint32_t(top)) {
        Chunk *chunk = chunks_[uint32_t(top) - 1].load(std::memory_order_acquire);
        uint64_t below = chunk->below.load(std::memory_order_relaxed) | ((top >> 32) + 1) << 32;
        if (top_.compare_exchange_weak(top, below, std::memory_order_acq_rel, std::memory_order_acquire)) {
            free_.fetch_sub(1, std::memory_order_relaxed);
            return chunk;
        }
    }
    return make();
}

void Pool::give(Chunk *chunk) {
    uint64_t top = top_.load(std::memory_order_relaxed), with;
    do {
        chunk->below.store(uint32_t(top), std::memory_order_relaxed);
        with = uint64_t(chunk->index + 1) | ((top >> 32) + 1) << 32;
    } while (!top_.compare_exchange_weak(top, with, std::memory_order_acq_rel, std::memory_order_relaxed));
    free_.fetch_add(1, std::memory_order_relaxed);
}

void Pool::stock(uint32_t free) {
    while (free_.load(std::memory_order_relaxed) < int32_t(free)) {
        Chunk *chunk = make();
        if (!chunk) return;
        give(chunk);
    }
}

Log::Log(Pool &pool, uint64_t torch_thread)
    : pool_(pool),
      native_thread(uint32_t(syscall(SYS_gettid))),
      ident(uint64_t(pthread_self())),
      torch_thread(torch_thread) {}

Log::~Log() = default;

bool Log::next_chunk() {
    // While all chunks wait for the disk, not every operator tries again.
    if (refused_ && refused_++ % 64) return false;
    Chunk *chunk = pool_.take();
    if (!chunk) {
        refused_ += !refused_;
        limit_ = nullptr;  // this chunk is full
        return false;
    }
    refused_ = 0;
    chunk->next.store(nullptr, std::memory_order_relaxed);
    chunk->number = number_++;
    chunk->dropped = dropped_;
    chunk->written = 0;
    dropped_ = 0;
    chunk->words[0] = word(DEPTH, depth_);
    memset(defined_, 0, sizeof defined_);
    definitions_.clear();
    if (chunk_) chunk_->count = published(*chunk_);
    (chunk_ ? chunk_->next : first).store(chunk, std::memory_order_release);
    chunk_ = chunk;
    at_ = chunk->words + 1, limit_ = chunk->words + CHUNK_WORDS - EVENT_WORDS + 1;
    published_.store(at_, std::memory_order_release);
    return true;
}

bool Log::refresh() {
    memset(names_, 0, sizeof names_);
    State stale = STALE;
    state_.compare_exchange_strong(stale, OPEN, std::memory_order_acq_rel, std::memory_order_acquire);
    return stale != CLOSED;
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

// Fold the 128-bit product of two numbers: every bit of the result depends on every bit of both.
static uint64_t folded(uint64_t a, uint64_t b) {
    auto product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

static uint64_t hash_of(const void *content, size_t length, uint64_t seed) {
    constexpr uint64_t first = UINT64_C(0x9E3779B97F4A7C15), second = UINT64_C(0xE7037ED1A0B428DB);
    auto *p = static_cast<const char *>(content), *end = p + length;
    uint64_t h = (seed << 32 ^ length) * first;
    for (; end - p > 16; p += 16) h = folded(h ^ part_of(p, 8), part_of(p + 8, 8) ^ second);
    uint64_t last = length > 16 ? part_of(end - 16, 8) : part_of(p, size_t(end - p) < 8 ? size_t(end - p) : 8);
    return folded(folded(h ^ last, first), (length >= 8 ? part_of(end - 8, 8) : 0) ^ second);
}

uint32_t Log::define(Definition sort, const void *content, size_t length) {
    uint64_t hash = hash_of(content, length, sort);
    if (const uint32_t *known = definitions_.find(hash)) return *known;
    uint32_t number = write_definition(sort, content, length);
    definitions_.add(hash, number);
    return number;
}

uint32_t Log::define_name(std::string_view name) {
    if (__builtin_expect(name.size() <= MOST_TEXT, 1)) return define(DEFINE_NAME, name.data(), name.size());
    char cut[MOST_TEXT], mark[64];
    auto checksum = static_cast<unsigned long long>(hash_of(name.data(), name.size(), DEFINE_NAME));
    auto length = size_t(snprintf(mark, sizeof mark, "… [%zu bytes, %016llx]", name.size(), checksum));
    size_t kept = MOST_TEXT - length;
    while (kept && (name[kept] & 0xC0) == 0x80) kept--;  // not inside a character of UTF-8
    memcpy(cut, name.data(), kept);
    memcpy(cut + kept, mark, length);
    return define(DEFINE_NAME, cut, kept + length);
}

}  // namespace stepscope
