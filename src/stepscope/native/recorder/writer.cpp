// The writer thread: it reads what threads have published and appends it as blocks (trace/blocks.py).
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "checksum.h"
#include "clock.h"
#include "session.h"

namespace stepscope {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Interval between two passes over full chunks, and between two passes over everything: a killed process loses at most
// the latter.
constexpr milliseconds LOOK(50), FLUSH(500);

#pragma pack(push, 1)
struct BlockHead {
    uint32_t marker, number, length, checksum;
};
struct ClockBlock {
    char sort[8];
    uint64_t ticks;
    int64_t monotonic, epoch;
    uint32_t ticks_uncertainty, epoch_uncertainty;
};
struct RatesHead {
    char sort[8];
};
struct ThreadHead {
    char sort[4];
    uint32_t thread;
};
struct WordsHead {
    char sort[4];
    uint32_t thread, chunk, place, dropped, native_thread;
    uint64_t ident, torch_thread;
};
#pragma pack(pop)

constexpr uint32_t MARKER = 0x0A4253F5;  // f5 'S' 'B' \n

}  // namespace

void Session::run() {
    // The first pass writes everything, and the clocks a second time: the reader knows the rate of the ticks even if
    // the process is killed soon.
    auto flushed = steady_clock::now() - FLUSH;
    for (bool stopping = false; !stopping;) {
        {
            std::unique_lock<std::mutex> guard(mutex_);
            changed_.wait_for(guard, LOOK, [this] { return stopping_; });
            stopping = stopping_;
        }
        auto now = steady_clock::now();
        bool all = stopping || now - flushed >= FLUSH;
        if (all) flushed = now, write_rates();
        // A reading of the clocks stands behind everything that was recorded before it.
        Moment now_read = take_moment();
        pass(all, stopping);
        if (all) write_clock(now_read);
        if (!stopping) pool_.stock(SPARE_CHUNKS);
    }
    write_clock(take_moment());
    std::lock_guard<std::mutex> guard(mutex_);
    done_ = true;
    changed_.notify_all();
}

void Session::pass(bool all, bool last) {
    {
        std::lock_guard<std::mutex> guard(logs_mutex_);
        seen_.clear();
        for (auto &log : logs_) seen_.push_back(log.get());
    }
    uint64_t lost = 0;
    for (Log *&log : seen_) {
        bool over = write_log(*log, all, last);
        uint64_t of_log = log->lost.load(std::memory_order_relaxed);
        (over ? lost_before_ : lost) += of_log;
        if (!over) log = nullptr;
    }
    lost_.store(lost_before_ + lost, std::memory_order_relaxed);
    std::lock_guard<std::mutex> guard(logs_mutex_);
    for (Log *over : seen_) {
        if (!over) continue;
        for (auto &log : logs_)
            if (log.get() == over) {
                std::swap(log, logs_.back());
                logs_.pop_back();
                break;
            }
    }
}

// Return whether the thread has ended and its log is written completely.
bool Session::write_log(Log &log, bool all, bool last) {
    // Read before the positions: a thread that has ended publishes nothing more, so what is read below is complete.
    bool ended = log.ended.load(std::memory_order_acquire) || last;
    if (!log.reading) log.reading = log.first.load(std::memory_order_acquire);
    while (Chunk *chunk = log.reading) {
        Chunk *next = chunk->next.load(std::memory_order_acquire);
        uint32_t count = next ? chunk->count : log.published(*chunk);
        if (next || all || ended) write_chunk(log, *chunk, count);
        if (!next && !ended) break;
        log.reading = next;
        pool_.give(chunk);
    }
    return ended;
}

void Session::write_chunk(Log &log, Chunk &chunk, uint32_t count) {
    if (count <= chunk.written) return;
    if (!log.named) write_thread(log);
    WordsHead head{{'W', 0, 0, 0}, log.number, chunk.number, chunk.written, chunk.dropped, log.native_thread, log.ident,
                   log.torch_thread};
    const uint64_t *words = chunk.words + chunk.written;
    write_block(&head, sizeof head, words, (count - chunk.written) * sizeof *words);
    if (error()) {
        for (uint32_t i = chunk.written; i < count; i++) lost_before_ += chunk.words[i] >> 60 == BEGIN;
    }
    chunk.written = count;
}

void Session::write_thread(Log &log) {
    log.named = true;
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", log.native_thread);
    if (FILE *file = fopen(path, "re")) {
        if (!fgets(name, sizeof name, file)) name[0] = 0;
        fclose(file);
    }
    ThreadHead head{{'T', 0, 0, 0}, log.number};
    write_block(&head, sizeof head, name, strcspn(name, "\n"));
}

void Session::write_clock(const Moment &moment) {
    ClockBlock block{{'C'},        moment.ticks, moment.monotonic, moment.epoch, moment.ticks_uncertainty,
                     moment.epoch_uncertainty};
    write_block(&block, sizeof block, nullptr, 0);
}

void Session::write_rates() {
    {
        std::lock_guard<std::mutex> guard(mutex_);
        rates_taken_.clear();
        rates_taken_.swap(rates_);
    }
    RatesHead head{{'R'}};
    if (!rates_taken_.empty()) write_block(&head, sizeof head, rates_taken_.data(), rates_taken_.size() * sizeof(Rate));
}

int Session::append(const void *payload, size_t length) {
    write_block(payload, length, nullptr, 0);
    return error();
}

void Session::write_block(const void *head, size_t head_length, const void *content, size_t length) {
    if (error()) return;  // after a block that the disk refused, later ones are dropped, too
    if (!file_is_ours()) return error_.store(EBADF, std::memory_order_relaxed);
    uint32_t checked[2] = {blocks_, uint32_t(head_length + length)};
    Checksum checksum;
    checksum.add(checked, sizeof checked);
    checksum.add(head, head_length);
    checksum.add(content, length);
    BlockHead block{MARKER, checked[0], checked[1], checksum.value()};
    iovec parts[3] = {{&block, sizeof block}, {const_cast<void *>(head), head_length}, {const_cast<void *>(content), length}};
    int64_t rest = int64_t(sizeof block + head_length + length), whole = rest;
    for (iovec *part = parts; rest > 0;) {
        ssize_t written = writev(file_, part, int(parts + 3 - part));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            error_.store(written < 0 ? errno : EIO, std::memory_order_relaxed);
            // To the reader, half a block looks like a killed process, which would hide the cause.
            if (ftruncate(file_, size_)) return;
            return;
        }
        rest -= written;
        while (part < parts + 3 && size_t(written) >= part->iov_len) written -= ssize_t(part++->iov_len);
        if (part < parts + 3) part->iov_base = static_cast<char *>(part->iov_base) + written, part->iov_len -= size_t(written);
    }
    size_ += whole;
    blocks_++;
    bytes_.store(uint64_t(size_), std::memory_order_relaxed);
}

}  // namespace stepscope
