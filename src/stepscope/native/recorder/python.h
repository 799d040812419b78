// Calls of Python functions and of torch.nn.Modules, reported by CPython's profile function (PyEval_SetProfile).
#pragma once

#include <cstdint>

namespace stepscope {

// The recorded Python calls that a thread is in.
struct Calls;

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
// Stop watching; each thread notices at its next call. After Session::end: no thread reads its calls any more.
void ignore_python();

// Return the line that the innermost call executes; 0 without a call. For the thread that is in the calls; does not need
// the GIL.
uint32_t line_of(Calls &calls);

}  // namespace stepscope
