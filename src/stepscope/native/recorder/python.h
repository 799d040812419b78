// Calls of Python functions and of torch.nn.Modules, reported by CPython's profile function (PyEval_SetProfile).
#pragma once

namespace stepscope {

// What to record, and which files do not belong to the program. Texts hold one entry a line.
struct PythonCalls {
    bool functions, modules;
    const char *roots;           // directories of imports, cut from the names of files; longest first
    const char *ours;            // prefixes of files whose functions are omitted
    const char *engine;          // prefixes of files whose functions are omitted with everything they call
    const void *module_call;     // code object of torch.nn.Module.__call__; may be null
};

// All functions here require the GIL. Watch the calling thread, beginning with its open calls. Returns 0, or ENOSYS if
// this Python lacks a function.
int watch_python(const PythonCalls &calls);
// Watch one more thread, the calling one; called from its profile function.
void watch_thread();
// Stop watching; each thread notices at its next call.
void ignore_python();

}  // namespace stepscope
