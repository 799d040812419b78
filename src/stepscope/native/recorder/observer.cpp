// Callbacks of torch: operators begin and end (at::RecordFunction), memory is allocated and freed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstring>
#include <memory>

#include "clock.h"
#include "groups.h"
#include "hush.h"
#include "inputs.h"
#include "observer.h"
#include "peek.h"
#include "python.h"
#include "targets.h"

namespace stepscope {

namespace {

bool has_stack_order(const at::RecordFunction &f) {
    auto scope = f.scope();
    return (scope == at::RecordScope::FUNCTION || scope == at::RecordScope::BACKWARD_FUNCTION) && !is_async(f);
}

// Scopes as torch 2.13 numbers them; older ones number user ranges differently.
uint32_t scope_of(const at::RecordFunction &f) {
    return f.scope() == at::RecordScope::USER_SCOPE ? USER_SCOPE : uint32_t(f.scope());
}

// Bits above the number of a name: the operator launches communication; it takes targets, of which it may ignore some.
constexpr uint32_t LAUNCHES = 1u << 31, TARGETS = 1u << 30;

__attribute__((noinline)) uint32_t define_schema(Log &log, const c10::FunctionSchema &schema) {
    uint32_t number = log.define_name(schema.name());
    number |= launches(schema) ? LAUNCHES : takes_targets(schema) ? TARGETS : 0;
    auto operation = c10::Dispatcher::singleton().findSchema(schema.operator_name());
    // Names of other owners than the dispatcher are not cached: such an owner may be freed without notice.
    if (operation && &operation->schema() == &schema) log.remember_name(&schema, number);
    return number;
}

uint32_t define_name(Log &log, const at::RecordFunction &f) {
    const c10::FunctionSchema *schema = schema_of(f);
    if (__builtin_expect(!schema, 0)) return log.define_name(own_name_of(f));
    uint32_t known = log.name_of(schema);
    return __builtin_expect(known, 1) ? known : define_schema(log, *schema);
}

// Is notified when the dispatcher deregisters an operator and frees its schema, by whose address names are cached.
class Departures : public c10::OpRegistrationListener {
  public:
    void onOperatorRegistered(const c10::OperatorHandle &) override {}
    void onOperatorDeregistered(const c10::OperatorHandle &) override { forget_names(); }
};

// Never destroyed: the dispatcher may deregister operators while the process exits.
void hear_of_departures() {
    static auto *heard = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Departures>()));
    (void)heard;
}

uint32_t define_inputs(Log &log, c10::ArrayRef<const c10::IValue> values) {
    if (values.empty()) return 0;
    uint64_t key = Digest(values).value();
    uint32_t known = key ? log.recall(key) : 0;
    if (__builtin_expect(known, 1)) return known;
    Inputs noted(values);
    known = log.define(DEFINE_INPUTS, noted.data(), noted.length());
    if (key) log.remember(key, known);
    return known;
}

// What an operator launches until it ends.
struct LaunchContext : at::ObserverContext {
    explicit LaunchContext(uint64_t launch) : scope(launch) {}
    LaunchScope scope;
};

// The launch that a range or call which is not an operator of the dispatcher works for: the annotation of a backend, or
// the call of torch.distributed in which it says its arguments. Others are not asked for: that would cost each a call.
uint64_t launch_of(const at::RecordFunction &f) {
    constexpr std::string_view CALL = "record_param_comms";
    bool range = f.scope() == at::RecordScope::USER_SCOPE;
    return range || (!schema_of(f) && own_name_of(f) == CALL) ? current_launch() : 0;
}

// Write that an operator begins. Return the launch that it is, 0 for others.
template <Noted noted, bool tsc>
uint64_t write_begin(Log &log, const at::RecordFunction &f, bool stacked) {
    uint32_t name = define_name(log, f), inputs = 0;
    bool launching = name & LAUNCHES;
    if (noted == Noted::ALL && name & TARGETS) note_targets(f.inputs());
    name &= ~(LAUNCHES | TARGETS);
    uint64_t launch = launching ? new_launch(*schema_of(f), f.inputs()) : launch_of(f);
    if (noted == Noted::ALL || (noted == Noted::OF_LAUNCHES && launching)) inputs = define_inputs(log, f.inputs());
    uint64_t details = name_word(scope_of(f), name, f.seqNr()), forward = f.forwardThreadId();
    uint32_t line = log.calls ? line_of(*log.calls) : 0;
    // Read the clock last: the cost of recording does not count as the operator's.
    log.put(word(BEGIN, ticks_of<tsc>()));
    log.put(details);
    if (inputs) log.put(word(INPUTS, inputs));
    if (forward) log.put(word(FORWARD, forward));
    if (!stacked) log.put(word(IDENTITY, uint64_t(reinterpret_cast<uintptr_t>(&f))));
    if (line) log.put(word(LINE, line));
    if (launch) log.put(word(LAUNCH, launch));
    log.publish();
    return launching ? launch : 0;
}

// Count an operator that is not recorded; a launch keeps its number and its place in the group.
__attribute__((noinline)) uint64_t drop(Log &log, const at::RecordFunction &f) {
    log.drop();
    const c10::FunctionSchema *schema = schema_of(f);
    return schema && launches(*schema) ? new_launch(*schema, f.inputs()) : 0;
}

template <Noted noted, bool tsc>
uint64_t begin(Log &log, const at::RecordFunction &f) {
    bool stacked = has_stack_order(f) && log.has_place();
    uint64_t launch = 0;
    if (log.ready())
        launch = write_begin<noted, tsc>(log, f, stacked);
    else
        launch = drop(log, f);
    if (stacked) log.push(&f);
    return launch;
}

template <Noted noted, bool tsc>
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &f) {
    Log *log = enter();
    if (!log) return nullptr;
    uint64_t launch = begin<noted, tsc>(*log, f);
    log->leave();
    return __builtin_expect(launch, 0) ? std::make_unique<LaunchContext>(launch) : nullptr;
}

void write_end(Log &log, const at::RecordFunction &f, uint64_t now) {
    bool ready = log.ready();  // before the pop: the head of a new chunk counts this operator as open
    int32_t level = log.pop(&f) ? 0 : has_stack_order(f) ? log.remove(&f) : -1;
    if (!ready) return;
    if (level > 0) log.put(word(LEVEL, uint64_t(level)));
    log.put(word(level < 0 ? END_OF : END, now));
    if (level < 0) log.put(word(IDENTITY, uint64_t(reinterpret_cast<uintptr_t>(&f))));
    log.publish();
}

template <bool tsc>
void on_end(const at::RecordFunction &f, at::ObserverContext *) {
    uint64_t now = ticks_of<tsc>();
    Log *log = enter();
    if (!log) return;
    write_end(*log, f, now);
    log->leave();
}

// At every node of a backward graph torch rebuilds its lists of callbacks, for each callback and each of its scopes, and
// draws random numbers for sampled ones. So one callback is registered if possible, without the scopes that never occur
// in training (LITE_INTERPRETER and STATIC_RUNTIME_* belong to inference, others to special builds).
using Scopes = std::unordered_set<at::RecordScope, std::hash<at::RecordScope>>;
const Scopes OPERATORS{at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                       at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::CUSTOM_CLASS};
const Scopes RANGES{at::RecordScope::USER_SCOPE};
const Scopes ALL{at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::TORCHSCRIPT_FUNCTION,
                 at::RecordScope::CUSTOM_CLASS, at::RecordScope::USER_SCOPE};

at::CallbackHandle handles[2] = {at::INVALID_CALLBACK_HANDLE, at::INVALID_CALLBACK_HANDLE};

template <Noted noted, bool tsc>
void add_callbacks(double fraction) {
    at::RecordFunctionCallback every(on_begin<noted, tsc>, on_end<tsc>);
    every.needsInputs(noted != Noted::NONE);
    handles[0] = at::addGlobalCallback(at::RecordFunctionCallback(every).scopes(fraction < 1 ? RANGES : ALL));
    if (fraction < 1) handles[1] = at::addGlobalCallback(every.scopes(OPERATORS).samplingProb(fraction));
}

// Remove, not disable: torch copies a disabled callback whenever it rebuilds its lists.
void remove_callbacks() {
    for (auto &handle : handles) {
        if (handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle);
        handle = at::INVALID_CALLBACK_HANDLE;
    }
}

Noted noted = Noted::NONE;

template <bool tsc>
void add_callbacks_of(double fraction) {
    switch (noted) {
    case Noted::NONE: return add_callbacks<Noted::NONE, tsc>(fraction);
    case Noted::OF_LAUNCHES: return add_callbacks<Noted::OF_LAUNCHES, tsc>(fraction);
    case Noted::ALL: return add_callbacks<Noted::ALL, tsc>(fraction);
    }
}

// The profiler state through which torch reports memory. Its state is Disabled, so torch::profiler::impl::
// profilerEnabled returns false and nothing takes it for Kineto's.
class MemoryReports : public torch::profiler::impl::ProfilerStateBase {
  public:
    MemoryReports()
        : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}

    torch::profiler::impl::ActiveProfilerType profilerType() override {
        return torch::profiler::impl::ActiveProfilerType::NONE;
    }

    bool memoryProfilingEnabled() const override { return on_.load(std::memory_order_relaxed); }

    void reportMemoryUsage(void *address, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
        Log *log = enter();
        if (!log) return;
        if (log->ready()) {
            log->put(word(MEMORY, ticks()));
            for (uint64_t value : {uint64_t(reinterpret_cast<uintptr_t>(address)), uint64_t(bytes), uint64_t(allocated),
                                   uint64_t(reserved), uint64_t(device.type()) << 8 | uint64_t(device.index() + 1)})
                log->put(word(VALUE, value));
            log->publish();
        } else {
            log->drop();
        }
        log->leave();
    }

    void silence() { on_.store(false, std::memory_order_relaxed); }

  private:
    std::atomic<bool> on_{true};
};

std::shared_ptr<MemoryReports> memory;

}  // namespace

uint64_t torch_thread() { return at::RecordFunction::currentThreadId(); }

void observe(Noted inputs, bool with_memory, double fraction) {
    noted = inputs;
    hear_of_departures();
    count_places(fraction == 1);
    count_targets();
    listen(fraction);
    if (!with_memory) return;
    memory = std::make_shared<MemoryReports>();
    hush();
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, memory);
}

void listen(double fraction) {
    remove_callbacks();
    if (fraction == 0) return;
    ticks_are_tsc ? add_callbacks_of<true>(fraction) : add_callbacks_of<false>(fraction);
}

void ignore() {
    remove_callbacks();
    ignore_memory();
}

void ignore_memory() {
    if (!memory) return;
    memory->silence();
    // On another thread than the one that pushed it, or below another state on the stack, ours cannot be popped: it
    // stays and does nothing.
    if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == memory.get()) {
        try {
            c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
        } catch (const std::exception &) {
            // Another kind of debug information lies above ours.
        }
    }
    memory.reset();
    unhush();
}

}  // namespace stepscope
