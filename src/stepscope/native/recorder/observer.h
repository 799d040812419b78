// Callbacks of torch, recorded into the log of the thread that they run on.
#pragma once

#include <cstdint>

#include "session.h"

namespace stepscope {

// Return torch's number of the calling thread.
uint64_t torch_thread();

// Of which operators shapes, types and values of inputs are recorded: of none; of those that launch communication, for
// which torch has to collect the inputs of all; of all.
enum class Noted { NONE, OF_LAUNCHES, ALL };

// Register the callbacks. memory: record allocations of the calling thread and of the threads that torch runs for it.
// fraction: see `listen`.
void observe(Noted inputs, bool memory, double fraction);

// Change the fraction of the operators that is recorded: 1 all, 0 none, else user ranges and a random part of the
// operators, each drawn independently.
void listen(double fraction);

// Unregister the callback for memory, or all. With memory, on the thread that registered it.
void ignore_memory();
void ignore();

}  // namespace stepscope
