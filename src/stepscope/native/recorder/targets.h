// Which part of the targets of a loss it ignores: rows of logits that were computed for nothing.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>

namespace stepscope {

// Targets of the losses over so many classes that a recording has looked at, and those that they ignore.
struct Targets {
    int64_t classes = 0, rows = 0, ignored = 0;
};

// Whether an operator takes logits, targets and the target to ignore: the negative log-likelihood.
bool takes_targets(const c10::FunctionSchema &schema);

// Forget what was counted, and count again.
void count_targets();

// Count the targets of a call if they lie in the memory of the CPU; the first million of a recording. Thread-safe.
void note_targets(c10::ArrayRef<const c10::IValue> inputs);

// Copy what was counted, one entry for each number of classes; return how many entries there are.
size_t counted_targets(Targets *entries, size_t room);

}  // namespace stepscope
