// The words that threads write, as collect/torch/native_collector.py describes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

enum Tag : uint64_t {
    END = 1, BEGIN, NAME, INPUTS, FORWARD, IDENTITY, END_OF, DEPTH, LEVEL, MEMORY, VALUE, DEFINE, RAW, LINE, LAUNCH
};

enum Definition : uint64_t { DEFINE_NAME = 1, DEFINE_INPUTS };

constexpr uint32_t USER_SCOPE = 7, PYTHON_SCOPE = 15;

constexpr uint64_t VALUE_BITS = (uint64_t(1) << 60) - 1;
constexpr uint64_t SEQUENCE_BITS = (uint64_t(1) << 36) - 1;
constexpr uint32_t MOST_NAMES = (1u << 20) - 1, MOST_DEFINITIONS = (1u << 24) - 1;

// Maximum of bytes of a text or of inputs in a definition.
constexpr size_t MOST_TEXT = 1024, MOST_INPUTS = 1536;

constexpr uint64_t word(Tag tag, uint64_t value) { return uint64_t(tag) << 60 | (value & VALUE_BITS); }

// Bits of a LAUNCH word for the place of a collective in its group, + 1; the number of the call stands above them.
constexpr uint32_t PLACE_BITS = 28;

constexpr uint64_t name_word(uint32_t scope, uint32_t name, int64_t sequence) {
    return word(NAME, uint64_t(scope & 15) << 56 | uint64_t(name) << 36 | (uint64_t(sequence + 1) & SEQUENCE_BITS));
}

}  // namespace stepscope
