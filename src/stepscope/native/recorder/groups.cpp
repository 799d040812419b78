#include "groups.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#define STEPSCOPE_HAS_GROUPS
#endif

#include "words.h"

namespace stepscope {

namespace {

constexpr std::string_view OPERATORS = "c10d::";

// Operators of the namespace between two ranks.
bool between_two(std::string_view name) {
    name.remove_prefix(OPERATORS.size());
    return name.substr(0, 4) == "send" || name.substr(0, 4) == "recv";
}

std::mutex mutex;
bool counted = false;
// Collectives that each group has launched, by its name. Never destroyed: threads use it while the process exits.
std::unordered_map<std::string, uint64_t> &places() {
    static auto *made = new std::unordered_map<std::string, uint64_t>;
    return *made;
}

// Says which launch a thread works for. torch copies the information of the launching thread, of which this is a part,
// to the thread that does the work: gloo's, or autograd's.
struct LaunchInfo : c10::DebugInfoBase {
    explicit LaunchInfo(uint64_t launch) : launch(launch) {}
    const uint64_t launch;
};

// Before torch 2.13 there are only kinds of torch's own; torch itself uses none for tests outside its tests.
const auto KIND = c10::DebugInfoKind::TEST_INFO_2;

}  // namespace

#ifdef STEPSCOPE_HAS_GROUPS
bool group_of(const c10::IValue &value, Group &group) {
    const auto object = value.toObject();
    const auto name = object->type()->name();
    if (!name || name->qualifiedName() != "__torch__.torch.classes.c10d.ProcessGroup" || object->slots().empty()) return false;
    // What IValue::toCustomClass does behind its check of the type, which compares addresses of types across libraries.
    const auto capsule = object->getSlot(0).toCapsule();
    const auto *found = static_cast<const c10d::ProcessGroup *>(capsule.get());
    try {
        group = Group{found->getGroupName(), found->getRank(), found->getSize()};
    } catch (const std::exception &) {
        return false;  // a group of a Python class may refuse
    }
    return true;
}
#else
bool group_of(const c10::IValue &, Group &) { return false; }
#endif

bool launches(const c10::FunctionSchema &schema) {
    const std::string &name = schema.name();
    return name.compare(0, OPERATORS.size(), OPERATORS) == 0 && name != "c10d::check_for_nan";
}

uint64_t new_launch(const c10::FunctionSchema &schema, c10::ArrayRef<const c10::IValue> inputs) {
    static std::atomic<uint64_t> last{0};
    uint64_t place = 0;
    Group group;
    if (!between_two(schema.name()))
        for (const auto &value : inputs)
            if (value.isObject() && group_of(value, group)) {
                std::lock_guard<std::mutex> guard(mutex);
                if (counted) place = ++places()[std::string(group.name)];
                break;
            }
    return (++last << PLACE_BITS | (place & ((1u << PLACE_BITS) - 1))) & VALUE_BITS;
}

void count_places(bool whole) {
    std::lock_guard<std::mutex> guard(mutex);
    places().clear();
    counted = whole;
}

uint64_t current_launch() {
    const auto *info = static_cast<const LaunchInfo *>(c10::ThreadLocalDebugInfo::get(KIND));
    return info ? info->launch : 0;
}

LaunchScope::LaunchScope(uint64_t launch) {
    try {
        c10::ThreadLocalDebugInfo::_push(KIND, std::make_shared<LaunchInfo>(launch));
        marked_ = true;
    } catch (const std::exception &) {
        // The thread works on without the mark.
    }
}

LaunchScope::~LaunchScope() {
    if (!marked_) return;
    try {
        c10::ThreadLocalDebugInfo::_pop(KIND);
    } catch (const std::exception &) {
        // The operator has left other information above ours.
    }
}

}  // namespace stepscope
