// What torch tells, put into the log of the thread that it happens on.
#pragma once

#include <cstdint>

#include "session.h"

namespace stepscope {

// Torch's number of the calling thread.
uint64_t torch_thread();

// Begin to listen. inputs: with shapes, types and values of inputs. memory: what the calling thread, and what torch runs
// for it, takes and frees. fraction: see `listen`.
void observe(bool inputs, bool memory, double fraction);

// From now on listen to everything (1), to nothing (0), or to ranges and to a part of the operators, each of which is
// drawn by itself.
void listen(double fraction);

// Listen no more; memory, or all. On the thread that began, where memory was asked for.
void ignore_memory();
void ignore();

}  // namespace stepscope
