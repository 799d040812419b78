// Calls of Python functions and of torch.nn.Modules, told by Python's own profile function (PyEval_SetProfile).
#pragma once

namespace stepscope {

// What is recorded, and what is not the program's. Texts are lines.
struct PythonCalls {
    bool functions, modules;
    const char *roots;           // directories that files are imported from: names of files do without, longest first
    const char *ours;            // prefixes of files whose functions are left out
    const char *engine;          // and of those where what they call is, too
    const void *module_call;     // code object of torch.nn.Module.__call__; may be null
};

// All of these with Python's lock held. Watch the calling thread, from the calls on that are going on.
// 0, or ENOSYS where this Python lacks a function.
int watch_python(const PythonCalls &calls);
// Watch another thread: the calling one, from within its profile function.
void watch_thread();
// Watch no more; threads find that out at their next call.
void ignore_python();

}  // namespace stepscope
