// CPython's public functions are looked up in the running interpreter, so the build needs no Python headers.
#include "python.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "clock.h"
#include "session.h"

namespace stepscope {

namespace {

struct Object;
struct Frame;
using ProfileFunction = int (*)(Object *, Frame *, int, Object *);

// Kinds of events, the same in all versions (cpython/pystate.h).
enum Event { CALL = 0, RETURN = 3 };

struct Api {
    void (*PyEval_SetProfile)(ProfileFunction, Object *);
    Frame *(*PyEval_GetFrame)();
    Frame *(*PyFrame_GetBack)(Frame *);
    Object *(*PyFrame_GetCode)(Frame *);
    int (*PyFrame_GetLasti)(Frame *);
    int (*PyCode_Addr2Line)(Object *, int);
    Object *(*PyObject_GetAttrString)(Object *, const char *);
    Object *(*PyMapping_GetItemString)(Object *, const char *);
    Object *(*PyObject_Type)(Object *);
    const char *(*PyUnicode_AsUTF8)(Object *);
    long (*PyLong_AsLong)(Object *);
    void (*Py_DecRef)(Object *);
    void (*Py_IncRef)(Object *);
    void (*PyErr_Clear)();
    void (*PyErr_Fetch)(Object **, Object **, Object **);
    void (*PyErr_Restore)(Object *, Object *, Object *);
};

Api api;

template <typename Function>
bool find(Function &function, const char *name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
}

#define FIND(name) find(api.name, #name)

bool find_all() {
    return FIND(PyEval_SetProfile) && FIND(PyEval_GetFrame) && FIND(PyFrame_GetBack) && FIND(PyFrame_GetCode) &&
           FIND(PyFrame_GetLasti) && FIND(PyCode_Addr2Line) && FIND(PyObject_GetAttrString) &&
           FIND(PyMapping_GetItemString) && FIND(PyObject_Type) && FIND(PyUnicode_AsUTF8) && FIND(PyLong_AsLong) &&
           FIND(Py_DecRef) && FIND(Py_IncRef) && FIND(PyErr_Clear) && FIND(PyErr_Fetch) && FIND(PyErr_Restore);
}

// An owned reference.
class Reference {
  public:
    explicit Reference(Object *object) : object_(object) {
        if (!object) api.PyErr_Clear();
    }
    ~Reference() {
        if (object_) api.Py_DecRef(object_);
    }
    Reference(const Reference &) = delete;
    Reference &operator=(const Reference &) = delete;
    Object *get() const { return object_; }

    std::string text() const {
        const char *found = object_ ? api.PyUnicode_AsUTF8(object_) : nullptr;
        if (!found) api.PyErr_Clear();
        return found ? found : "?";
    }

  private:
    Object *object_;
};

// Saves the pending exception and restores it.
struct Undisturbed {
    Undisturbed() { api.PyErr_Fetch(&type, &value, &trace); }
    ~Undisturbed() { api.PyErr_Restore(type, value, trace); }
    Object *type, *value, *trace;
};

}  // namespace

// A thread adds and removes its own calls with the GIL, and reads them without it: an operator runs without the GIL.
// The frames are owned references: the program may replace our profile function, and then the end of a call is unseen.
struct Calls {
    struct Call {
        Frame *frame;
        Object *code;
    };
    struct Line {
        const Object *code;
        int at;
        uint32_t line;
    };
    static constexpr uint32_t MOST_LINES = 256;

    ~Calls() {
        for (Call &call : open) release(call.frame);
    }

    void begin(Frame *frame, Object *code) {
        open.push_back({frame, code});
        api.Py_IncRef(reinterpret_cast<Object *>(frame));
    }

    void end(Frame *frame) {
        for (size_t i = open.size(); i-- > 0;)
            if (open[i].frame == frame) {
                open.erase(open.begin() + int64_t(i));
                return release(frame);
            }
    }

    static void release(Frame *frame) { api.Py_DecRef(reinterpret_cast<Object *>(frame)); }

    std::vector<Call> open;
    Line lines[MOST_LINES] = {};  // by code and place of the instruction
};

// CPython walks over the code's table of lines, so known places are kept. The code is that of a frame which runs.
uint32_t line_of(Calls &calls) {
    if (calls.open.empty()) return 0;
    Calls::Call &call = calls.open.back();
    int at = api.PyFrame_GetLasti(call.frame);
    if (at < 0) return 0;
    uint64_t mixed = (uint64_t(reinterpret_cast<uintptr_t>(call.code)) + uint64_t(at)) * UINT64_C(0x9E3779B97F4A7C15);
    Calls::Line &known = calls.lines[mixed >> 56];
    if (known.code != call.code || known.at != at) {
        int line = api.PyCode_Addr2Line(call.code, at);
        known = {call.code, at, line > 0 ? uint32_t(line) : 0};
    }
    return known.line;
}

namespace {

// Everything below is guarded by the GIL: without it, two threads would race for these tables.
struct State {
    bool functions = false, modules = false;
    const void *module_call = nullptr;
    std::vector<std::string> roots, ours, engine;
    std::unordered_set<Object *> codes;                     // owned: a freed code object's address could be reused
    std::unordered_map<std::string, uint32_t> classes;      // how many modules of each were seen
    std::unordered_map<const void *, std::string> instances;  // names of modules
    std::vector<std::unique_ptr<Calls>> calls;                // of the threads that record
};

State &state() {
    static State *made = new State;
    return *made;
}

std::atomic<bool> watching{false};

// Reserved numbers for functions that are omitted.
constexpr uint32_t OURS = UINT32_MAX, ENGINE = UINT32_MAX - 1, LEFT_OUT = UINT32_MAX - 2;

std::vector<std::string> lines(const char *text) {
    std::vector<std::string> found;
    for (const char *end; *text; text = *end ? end + 1 : end) {
        end = strchrnul(text, '\n');
        if (end != text) found.emplace_back(text, size_t(end - text));
    }
    return found;
}

bool begins_with_any(const std::string &text, const std::vector<std::string> &prefixes) {
    for (const auto &prefix : prefixes)
        if (!text.compare(0, prefix.size(), prefix)) return true;
    return false;
}

// Define the name of a function, or decide to omit it.
uint32_t name_function(Log &log, Object *code) {
    Undisturbed keep;
    std::string file = Reference(api.PyObject_GetAttrString(code, "co_filename")).text();
    if (begins_with_any(file, state().engine)) return ENGINE;
    if (begins_with_any(file, state().ours)) return OURS;
    if (!state().functions) return LEFT_OUT;
    for (const auto &root : state().roots)
        if (!file.compare(0, root.size(), root)) {
            file.erase(0, root.size());
            break;
        }
    std::string name = Reference(api.PyObject_GetAttrString(code, "co_qualname")).text();
    Reference line(api.PyObject_GetAttrString(code, "co_firstlineno"));
    name = file + "(" + std::to_string(line.get() ? api.PyLong_AsLong(line.get()) : 0) + "): " + name;
    return log.define_name(name);
}

// Define the name of a called module as torch.profiler does: its class, and its index among that class's modules.
uint32_t name_module(Log &log, Frame *frame) {
    Undisturbed keep;
    Reference locals(api.PyObject_GetAttrString(reinterpret_cast<Object *>(frame), "f_locals"));
    Reference self(locals.get() ? api.PyMapping_GetItemString(locals.get(), "self") : nullptr);
    if (!self.get()) return LEFT_OUT;
    std::string &name = state().instances[self.get()];
    if (name.empty()) {
        Reference type(api.PyObject_Type(self.get()));
        std::string cls = Reference(api.PyObject_GetAttrString(type.get(), "__name__")).text();
        name = "nn.Module: " + cls + "_" + std::to_string(state().classes[cls]++);
    }
    return log.define_name(name);
}

uint32_t name_call(Log &log, Frame *frame, Object *code) {
    if (code == state().module_call && state().modules) return name_module(log, frame);
    uint64_t key = uint64_t(reinterpret_cast<uintptr_t>(code));
    uint32_t name = log.recall(key);
    if (name) return name;
    if (state().codes.insert(code).second) api.Py_IncRef(code);
    log.remember(key, name = name_function(log, code));
    return name;
}

// Return the calls of the log's thread; nullptr where functions are not recorded.
Calls *calls_of(Log &log) {
    if (!log.calls && state().functions) {
        state().calls.push_back(std::make_unique<Calls>());
        log.calls = state().calls.back().get();
    }
    return log.calls;
}

void begin_call(Log &log, Frame *frame) {
    if (log.hidden || !log.has_place() || !log.ready()) return;
    Object *code = api.PyFrame_GetCode(frame);
    api.Py_DecRef(code);  // the frame keeps it
    uint32_t name = name_call(log, frame, code);
    if (name >= LEFT_OUT) {
        if (name == ENGINE) log.hidden = frame;
        log.publish();
        return;
    }
    Calls *calls = calls_of(log);
    uint32_t line = calls ? line_of(*calls) : 0;
    if (calls) calls->begin(frame, code);
    log.put(word(BEGIN, ticks()));
    log.put(name_word(PYTHON_SCOPE, name, -1));
    if (line) log.put(word(LINE, line));
    log.publish();
    log.push(frame);
}

void end_call(Log &log, Frame *frame, uint64_t now) {
    if (log.hidden) {
        if (log.hidden == frame) log.hidden = nullptr;
        return;
    }
    int32_t level = log.remove(frame);
    if (level >= 0 && log.calls) log.calls->end(frame);
    if (level < 0 || !log.ready()) return;
    if (level) log.put(word(LEVEL, uint64_t(level)));
    log.put(word(END, now));
    log.publish();
}

int on_event(Object *, Frame *frame, int what, Object *) {
    if (what != CALL && what != RETURN) return 0;
    uint64_t now = ticks();
    if (!watching.load(std::memory_order_relaxed)) {
        api.PyEval_SetProfile(nullptr, nullptr);
        return 0;
    }
    Log *log = enter();
    if (!log) return 0;
    try {
        what == CALL ? begin_call(*log, frame) : end_call(*log, frame, now);
    } catch (const std::bad_alloc &) {
        // Out of memory for a name: omit this call.
    }
    log->leave();
    return 0;
}

}  // namespace

static void watch_calls_going_on() {
    Log *log = enter();
    if (!log) return;
    std::vector<Frame *> frames;
    for (Frame *frame = api.PyEval_GetFrame(); frame;) {
        frames.push_back(frame);
        Frame *back = api.PyFrame_GetBack(frame);
        if (back) api.Py_DecRef(reinterpret_cast<Object *>(back));  // the interpreter keeps it while it runs
        frame = back;
    }
    for (auto frame = frames.rbegin(); frame != frames.rend() && !log->hidden; ++frame)
        begin_call(*log, *frame);
    log->leave();
}

int watch_python(const PythonCalls &calls) {
    static bool found = find_all();
    if (!found) return ENOSYS;
    State &all = state();
    all.functions = calls.functions, all.modules = calls.modules, all.module_call = calls.module_call;
    auto *module_call = static_cast<Object *>(const_cast<void *>(calls.module_call));
    if (module_call && all.codes.insert(module_call).second) api.Py_IncRef(module_call);
    all.roots = lines(calls.roots), all.ours = lines(calls.ours), all.engine = lines(calls.engine);
    watching = true;
    watch_calls_going_on();
    api.PyEval_SetProfile(on_event, nullptr);
    return 0;
}

void watch_thread() {
    if (!watching) return;
    watch_calls_going_on();
    // The innermost call is our own profile function, which called this; CPython does not report its return.
    if (Log *log = enter()) {
        log->hidden = nullptr;
        log->leave();
    }
    api.PyEval_SetProfile(on_event, nullptr);
}

void ignore_python() {
    if (!watching.exchange(false)) return;
    State &all = state();
    all.calls.clear();
    for (Object *code : all.codes) api.Py_DecRef(code);
    all.codes.clear();
    all.classes.clear();
    all.instances.clear();
}

}  // namespace stepscope
