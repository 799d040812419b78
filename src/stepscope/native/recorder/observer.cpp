// What torch tells: operators begin and end (at::RecordFunction), memory is taken and freed.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstring>
#include <memory>

#include "clock.h"
#include "inputs.h"
#include "observer.h"

namespace stepscope {

namespace {

bool has_stack_order(const at::RecordFunction &f) {
    auto scope = f.scope();
    return (scope == at::RecordScope::FUNCTION || scope == at::RecordScope::BACKWARD_FUNCTION) && !f.isAsync();
}

// Scopes as torch 2.13 numbers them; older ones number user ranges differently.
uint32_t scope_of(const at::RecordFunction &f) {
    return f.scope() == at::RecordScope::USER_SCOPE ? USER_SCOPE : uint32_t(f.scope());
}

template <bool with_inputs>
void write_begin(Log &log, const at::RecordFunction &f, bool stacked) {
    const char *text = f.name();
    uint32_t name = log.define(DEFINE_NAME, text, strnlen(text, MOST_TEXT)), inputs = 0;
    if (with_inputs && !f.inputs().empty()) {
        Inputs noted(f.inputs());
        inputs = log.define(DEFINE_INPUTS, noted.data(), noted.length());
    }
    uint64_t begin = word(BEGIN, 0), details = name_word(scope_of(f), name, f.seqNr());
    uint64_t forward = f.forwardThreadId();
    // The stamp comes last: what we do here is not the operator's.
    log.put(begin | (ticks() & VALUE_BITS));
    log.put(details);
    if (inputs) log.put(word(INPUTS, inputs));
    if (forward) log.put(word(FORWARD, forward));
    if (!stacked) log.put(word(IDENTITY, uint64_t(reinterpret_cast<uintptr_t>(&f))));
    log.publish();
}

template <bool with_inputs>
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &f) {
    Desk *desk = enter();
    if (!desk) return nullptr;
    Log &log = *desk->log;
    bool stacked = has_stack_order(f) && log.has_place();
    if (log.ready())
        write_begin<with_inputs>(log, f, stacked);
    else
        log.drop();
    if (stacked) log.push(&f);
    leave(desk);
    return nullptr;
}

void on_end(const at::RecordFunction &f, at::ObserverContext *) {
    uint64_t now = ticks() & VALUE_BITS;
    Desk *desk = enter();
    if (!desk) return;
    Log &log = *desk->log;
    bool ready = log.ready();  // first: a new chunk says how many are open before this end
    int32_t level = has_stack_order(f) ? log.remove(&f) : -1;
    if (ready) {
        if (level == 0) {
            log.put(word(END, now));
        } else if (level > 0) {
            log.put(word(LEVEL, uint64_t(level)));
            log.put(word(END, now));
        } else {
            log.put(word(END_OF, now));
            log.put(word(IDENTITY, uint64_t(reinterpret_cast<uintptr_t>(&f))));
        }
        log.publish();
    }
    leave(desk);
}

// Everything but scopes that only special builds have.
const std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> OPERATORS{
    at::RecordScope::FUNCTION,          at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::TORCHSCRIPT_FUNCTION,
    at::RecordScope::CUSTOM_CLASS,      at::RecordScope::LITE_INTERPRETER,  at::RecordScope::STATIC_RUNTIME_OP,
    at::RecordScope::STATIC_RUNTIME_MODEL};
const std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> RANGES{at::RecordScope::USER_SCOPE};

at::CallbackHandle handles[2] = {at::INVALID_CALLBACK_HANDLE, at::INVALID_CALLBACK_HANDLE};

at::CallbackHandle observe(const std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> &scopes, bool inputs,
                           double fraction) {
    at::RecordFunctionCallback callback(inputs ? on_begin<true> : on_begin<false>, on_end);
    callback.scopes(scopes).needsInputs(inputs).samplingProb(fraction);
    return at::addGlobalCallback(callback);
}

// Where torch looks for a profiler that wants to know of memory. It is one to all questions that torch asks its own
// (torch::profiler::impl::profilerEnabled says no: the state is Disabled), so that nobody takes it for Kineto's.
class MemoryReports : public torch::profiler::impl::ProfilerStateBase {
  public:
    MemoryReports()
        : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}

    torch::profiler::impl::ActiveProfilerType profilerType() override {
        return torch::profiler::impl::ActiveProfilerType::NONE;
    }

    bool memoryProfilingEnabled() const override { return on_.load(std::memory_order_relaxed); }

    void reportMemoryUsage(void *address, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
        Desk *desk = enter();
        if (!desk) return;
        Log &log = *desk->log;
        if (log.ready()) {
            log.put(word(MEMORY, ticks()));
            for (uint64_t value : {uint64_t(reinterpret_cast<uintptr_t>(address)), uint64_t(bytes), uint64_t(allocated),
                                   uint64_t(reserved), uint64_t(device.type()) << 8 | uint64_t(device.index() + 1)})
                log.put(word(VALUE, value));
            log.publish();
        } else {
            log.drop();
        }
        leave(desk);
    }

    void silence() { on_.store(false, std::memory_order_relaxed); }

  private:
    std::atomic<bool> on_{true};
};

std::shared_ptr<MemoryReports> memory;

}  // namespace

uint64_t torch_thread() { return at::RecordFunction::currentThreadId(); }

void observe(bool inputs, bool with_memory, double fraction) {
    handles[0] = observe(RANGES, inputs, 1.0);
    handles[1] = observe(OPERATORS, inputs, fraction);
    if (!with_memory) return;
    memory = std::make_shared<MemoryReports>();
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, memory);
}

void ignore() {
    for (auto &handle : handles) {
        if (handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle);
        handle = at::INVALID_CALLBACK_HANDLE;
    }
    ignore_memory();
}

void ignore_memory() {
    if (!memory) return;
    memory->silence();
    // Another thread than the one that began, or somebody's state above ours: it stays there, silent.
    if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == memory.get()) {
        try {
            c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
        } catch (const std::exception &) {
            // Some other kind of information is above ours.
        }
    }
    memory.reset();
}

}  // namespace stepscope
