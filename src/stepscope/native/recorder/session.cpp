#include "session.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "clock.h"

namespace stepscope {

std::atomic<bool> recording{false};
__thread Log *own_log = nullptr;

namespace {

// Never destroyed: threads use it while the process exits, after static destructors have run.
struct Registry {
    std::mutex mutex;
    Session *session = nullptr;
    bool barrier = false;
};

Registry &registry() {
    static Registry *made = new Registry;
    return *made;
}

thread_local bool over = false;  // trivially destructible: destructors that run later on this thread still read it

// Owns a reference to the thread's log, and marks the log as ended when the thread ends.
struct AtThreadEnd {
    std::shared_ptr<Log> log;
    ~AtThreadEnd() {
        over = true;
        own_log = nullptr;
        if (log) log->ended.store(true, std::memory_order_release);
    }
};

thread_local AtThreadEnd at_thread_end;

void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

// A forked child has neither the writer nor the other threads. It records nothing and frees nothing: a mutex or chunk
// that another thread held at the fork stays held for ever.
void after_fork_in_child() {
    recording.store(false, std::memory_order_relaxed);
    registry().session = nullptr;
    if (own_log) own_log->close();
    registry().mutex.unlock();
}

bool set_up() {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    registry().barrier = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    return true;
}

}  // namespace

Log *join() {
    if (over) return nullptr;
    std::lock_guard<std::mutex> guard(registry().mutex);
    if (!registry().session) return nullptr;
    if (!own_log || !own_log->refresh()) {
        std::shared_ptr<Log> log = registry().session->attach();
        if (!log) return nullptr;
        own_log = log.get();
        at_thread_end.log = std::move(log);
    }
    return own_log->enter() ? own_log : nullptr;
}

void forget_names() {
    std::lock_guard<std::mutex> guard(registry().mutex);
    if (registry().session) registry().session->forget_names();
}

Session::Session(int file, uint32_t most, uint64_t (*torch_thread)())
    : file_(file), torch_thread_(torch_thread), pool_(most), size_(lseek(file, 0, SEEK_END)) {
    fstat(file, &opened_);
    pool_.stock(SPARE_CHUNKS);
}

Session::~Session() {
    end();
    if (writer_.joinable()) writer_.join();
    if (file_is_ours()) close(file_);
}

bool Session::file_is_ours() const {
    struct stat now;
    return !fstat(file_, &now) && now.st_dev == opened_.st_dev && now.st_ino == opened_.st_ino;
}

std::shared_ptr<Log> Session::attach() {
    try {
        auto log = std::make_shared<Log>(pool_, torch_thread_());
        std::lock_guard<std::mutex> guard(logs_mutex_);
        logs_.push_back(log);
        log->number = threads_++;
        return log;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void Session::forget_names() {
    std::lock_guard<std::mutex> guard(logs_mutex_);
    for (auto &log : logs_) log->make_stale();
}

void Session::note_rate(double rate) {
    std::lock_guard<std::mutex> guard(mutex_);
    rates_.push_back({ticks(), rate});
}

int Session::begin() {
    static bool ready = set_up();
    (void)ready;
    Registry &all = registry();
    {
        std::lock_guard<std::mutex> guard(all.mutex);
        if (all.session) return EBUSY;
        all.session = this;
    }
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);  // inherited by the writer: signals go to the program's threads
    write_clock(take_moment());
    done_ = false;
    try {
        writer_ = std::thread([this] { run(); });
        pthread_setname_np(writer_.native_handle(), "stepscope-rec");
    } catch (const std::system_error &) {
        done_ = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (done_) {
        std::lock_guard<std::mutex> guard(all.mutex);
        all.session = nullptr;
        return EAGAIN;
    }
    recording.store(true, std::memory_order_seq_cst);
    return 0;
}

void Session::end() {
    {
        std::lock_guard<std::mutex> guard(registry().mutex);
        if (registry().session != this) return;
        recording.store(false, std::memory_order_relaxed);
        registry().session = nullptr;  // under the mutex: no thread attaches from here on
    }
    wait_for_all_to_leave();
    std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_all();
}

// Wait until every thread has left its log. A thread that is preempted inside delays this by some milliseconds.
void Session::wait_for_all_to_leave() {
    std::lock_guard<std::mutex> guard(logs_mutex_);
    for (auto &log : logs_) log->close();
    if (!registry().barrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) {
        usleep(5000);  // kernel without membarrier: every store is visible to all processors well within this time
    }
    for (auto &log : logs_)
        while (log->busy()) sched_yield();
}

bool Session::settle(double seconds) {
    std::unique_lock<std::mutex> guard(mutex_);
    if (!changed_.wait_for(guard, std::chrono::duration<double>(seconds), [this] { return done_; })) return false;
    guard.unlock();
    if (writer_.joinable()) writer_.join();
    return true;
}

}  // namespace stepscope
