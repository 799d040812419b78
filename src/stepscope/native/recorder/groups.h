// Process groups of torch.distributed, and the calls that launch communication in them.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>

namespace stepscope {

// A process group: its name, and the place of this process in it. The name lives as long as the group.
struct Group {
    std::string_view name;
    int rank = 0, size = 0;
};

// Whether a value is a process group, and which.
bool group_of(const c10::IValue &value, Group &group);

// Whether an operator launches communication: the operators of torch.distributed, `c10d::`.
bool launches(const c10::FunctionSchema &schema);

// Begin to count the places of collectives in their groups, or, of a sample, count none: ranks draw different ones.
void count_places(bool whole);

// The content of a LAUNCH word for a call of such an operator: the number of the call, counted in this process from 1,
// and its place among the collectives that its group has launched since `count_places`; places are counted here, not by
// the reader, so that a block that is missing from the file shifts none. Operations between two ranks have no place:
// other ranks of the group launch others. Thread-safe.
uint64_t new_launch(const c10::FunctionSchema &schema, c10::ArrayRef<const c10::IValue> inputs);

// The launch that the calling thread works for, 0 for none. torch hands it on to the threads that do the work.
uint64_t current_launch();

// Marks the calling thread as working for a launch, until it is destroyed on the same thread.
class LaunchScope {
  public:
    explicit LaunchScope(uint64_t launch);
    ~LaunchScope();
    LaunchScope(const LaunchScope &) = delete;
    LaunchScope &operator=(const LaunchScope &) = delete;

  private:
    bool marked_ = false;
};

}  // namespace stepscope
