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

std::atomic<uint32_t> recording{0};
__thread Desk *own_desk = nullptr;

namespace {

// Never destroyed: threads use it while the process ends.
struct Registry {
    std::mutex mutex;
    Desk *first = nullptr;
    Session *session = nullptr;  // valid for whoever is inside and has seen `recording` not 0
    uint32_t generations = 0;
    bool barrier = false;
};

Registry &registry() {
    static Registry *made = new Registry;
    return *made;
}

// Leaves the recording when its thread ends.
struct AtThreadEnd {
    bool awake = false;
    ~AtThreadEnd();
};

thread_local AtThreadEnd at_thread_end;
thread_local bool over = false;  // plain memory: other destructors of the thread may still look at it

AtThreadEnd::~AtThreadEnd() {
    over = true;
    Desk *desk = own_desk;
    if (!desk) return;
    if (Desk *inside = enter()) {
        inside->log->ended.store(true, std::memory_order_release);
        leave(inside);
    }
    own_desk = nullptr;
    std::lock_guard<std::mutex> guard(registry().mutex);
    (desk->before ? desk->before->behind : registry().first) = desk->behind;
    if (desk->behind) desk->behind->before = desk->before;
    delete desk;
}

void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

// The writer and the other threads are not in the child: it records nothing, and frees nothing that they may have held.
void after_fork_in_child() {
    recording.store(0, std::memory_order_relaxed);
    registry().session = nullptr;
    registry().first = own_desk;
    if (own_desk) own_desk->before = own_desk->behind = nullptr;
    registry().mutex.unlock();
}

bool set_up() {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    registry().barrier = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    return true;
}

// Wait until no thread is inside. A thread that the system does not let run is waited for, some milliseconds.
void wait_for_all_to_leave() {
    Registry &all = registry();
    std::lock_guard<std::mutex> guard(all.mutex);
    if (!all.barrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) {
        usleep(5000);  // an old kernel: stores become visible in far less time than this
    }
    for (Desk *desk = all.first; desk; desk = desk->behind)
        while (desk->busy.load(std::memory_order_acquire)) sched_yield();
}

}  // namespace

Desk *make_desk() {
    if (over) return nullptr;
    at_thread_end.awake = true;  // makes it, so that it is destroyed when the thread ends
    auto *desk = new (std::nothrow) Desk;
    if (!desk) return nullptr;
    std::lock_guard<std::mutex> guard(registry().mutex);
    desk->behind = registry().first;
    if (desk->behind) desk->behind->before = desk;
    registry().first = desk;
    return own_desk = desk;
}

bool attach_desk(Desk &desk, uint32_t generation) {
    desk.log = registry().session->attach();
    if (!desk.log) return false;
    desk.generation = generation;
    return true;
}

Session::Session(int file, uint32_t most, uint64_t (*torch_thread)())
    : file_(file), torch_thread_(torch_thread), pool_(most), size_(lseek(file, 0, SEEK_END)) {
    pool_.stock(SPARE_CHUNKS);
}

Session::~Session() {
    end();
    if (writer_.joinable()) writer_.join();
    close(file_);
}

Log *Session::attach() {
    std::unique_ptr<Log> log(new (std::nothrow) Log(pool_, torch_thread_()));
    if (!log) return nullptr;
    std::lock_guard<std::mutex> guard(logs_mutex_);
    log->number = threads_++;
    logs_.push_back(std::move(log));
    return logs_.back().get();
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
    pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are for the program's own threads
    write_clock();
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
    recording.store(++all.generations, std::memory_order_seq_cst);
    return 0;
}

void Session::end() {
    Registry &all = registry();
    {
        std::lock_guard<std::mutex> guard(all.mutex);
        if (ended_ || all.session != this) return;
        recording.store(0, std::memory_order_seq_cst);
    }
    wait_for_all_to_leave();
    {
        std::lock_guard<std::mutex> guard(all.mutex);
        all.session = nullptr;
    }
    ended_ = true;
    std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_all();
}

bool Session::settle(double seconds) {
    std::unique_lock<std::mutex> guard(mutex_);
    if (!changed_.wait_for(guard, std::chrono::duration<double>(seconds), [this] { return done_; })) return false;
    guard.unlock();
    if (writer_.joinable()) writer_.join();
    return true;
}

}  // namespace stepscope
