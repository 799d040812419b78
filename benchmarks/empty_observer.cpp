// An observer of PyTorch's operators that does nothing: what torch itself takes to tell anybody of them.
#include <ATen/record_function.h>

#include <memory>
#include <unordered_set>

namespace {

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &) { return nullptr; }

void on_end(const at::RecordFunction &, at::ObserverContext *) {}

at::CallbackHandle handle;

}  // namespace

extern "C" void observe(int inputs) {
    // The scopes that the native recorder listens to.
    std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> scopes{
        at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::TORCHSCRIPT_FUNCTION,
        at::RecordScope::CUSTOM_CLASS, at::RecordScope::USER_SCOPE};
    handle = at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end).needsInputs(inputs).scopes(scopes));
}

extern "C" void ignore() { at::removeCallback(handle); }
