// The definitions of a thread's chunk: hashes of contents, and their numbers.
//
// Entries are ordered by first use, which is about the order in which a training repeats them, so look-ups touch few
// cache lines; a small hash index points to them.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

namespace stepscope {

class Definitions {
  public:
    Definitions() { grow(FEWEST); }

    // The number of a hash, or nullptr.
    const uint32_t *find(uint64_t hash) const {
        for (uint32_t at = uint32_t(hash >> 32) & mask_; index_[at]; at = (at + 1) & mask_) {
            const Entry &entry = entries_[index_[at] - 1];
            if (__builtin_expect(entry.hash == hash, 1)) return &entry.number;
        }
        return nullptr;
    }

    // Add a hash that is absent. A full table is cleared: its contents are defined again on next use.
    void add(uint64_t hash, uint32_t number) {
        if (count_ * 2 > mask_) mask_ + 1 < MOST ? grow((mask_ + 1) * 2) : clear();
        entries_[count_] = Entry{hash, number};
        put(hash, ++count_);
    }

    void clear() {
        count_ = 0;
        memset(index_.get(), 0, (mask_ + 1) * sizeof index_[0]);
    }

  private:
    struct Entry {
        uint64_t hash;
        uint32_t number;
    };
    // Sizes of the index, twice as many as entries.
    static constexpr uint32_t FEWEST = 512, MOST = 16384;

    void put(uint64_t hash, uint32_t place) {
        uint32_t at = uint32_t(hash >> 32) & mask_;
        while (index_[at]) at = (at + 1) & mask_;
        index_[at] = uint16_t(place);
    }

    void grow(uint32_t size) {
        std::unique_ptr<Entry[]> entries(new Entry[size / 2 + 1]);
        if (count_) memcpy(entries.get(), entries_.get(), count_ * sizeof(Entry));
        entries_ = std::move(entries);
        index_.reset(new uint16_t[size]());
        mask_ = size - 1;
        for (uint32_t i = 0; i < count_; i++) put(entries_[i].hash, i + 1);
    }

    std::unique_ptr<uint16_t[]> index_;  // 0, or the row of an entry + 1
    std::unique_ptr<Entry[]> entries_;
    uint32_t mask_ = 0, count_ = 0;
};

}  // namespace stepscope
