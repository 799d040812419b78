// Threads are born, record and end while recordings begin and end: recorder_stress DIRECTORY RECORDINGS CHUNKS.
//
// Writes DIRECTORY/<number>.ssr and prints for each recording its number, the operators that were written by the
// threads, and those that were dropped. Built with ThreadSanitizer, and with the others, by test_recorder_stress.py.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"
#include "session.h"

using namespace stepscope;

static std::atomic<bool> over{false};
static std::atomic<uint64_t> begun{0}, dropped{0};
static std::atomic<uint64_t> numbers{0};
static const char owners[700] = {};  // of names

static uint64_t number_of_thread() {
    thread_local uint64_t own = ++numbers;
    return own;
}

static void one_operator(unsigned salt) {
    std::string name = "operator " + std::to_string(salt % 700);
    Log *log = enter();
    if (!log) return;
    if (log->ready()) {
        const char *owner = owners + salt % 700;
        uint32_t number = log->name_of(owner);
        if (!number) log->remember_name(owner, number = log->define(DEFINE_NAME, name.data(), name.size()));
        log->put(word(BEGIN, ticks()));
        log->put(name_word(0, number, salt));
        log->publish();
        begun++;
    } else {
        log->drop();
        dropped++;
    }
    log->push(&name);
    log->leave();
    if (salt % 97 == 0) std::this_thread::yield();
    if (salt % 1009 == 0) forget_names();
    log = enter();
    if (!log) return;
    if (log->remove(&name) == 0 && log->ready()) {
        log->put(word(END, ticks()));
        log->publish();
    }
    log->leave();
}

static void work(unsigned life) {
    for (unsigned i = 0; i < life && !over; i++) one_operator(i * 31 + life);
}

// A thread that starts others, one after another: some live for a few operators, some for many.
static void bear(unsigned seed) {
    while (!over) {
        seed = seed * 1103515245 + 12345;
        std::thread(work, seed >> 8 & 1 ? 20 : 4000 + (seed >> 16 & 4095)).join();
    }
}

int main(int, char **arguments) {
    int recordings = atoi(arguments[2]), chunks = atoi(arguments[3]);
    std::vector<std::thread> parents;
    for (unsigned i = 0; i < 6; i++) parents.emplace_back(bear, i * 7919);
    for (int i = 0; i < recordings; i++) {
        std::string path = std::string(arguments[1]) + "/" + std::to_string(i) + ".ssr";
        int file = open(path.c_str(), O_RDWR | O_APPEND);
        Session session(file, uint32_t(chunks), number_of_thread);
        begun = dropped = 0;
        if (session.begin()) return 1;
        usleep(useconds_t(1000 * (i * 37 % 80)));
        session.end();
        uint64_t written = begun, missing = dropped;
        if (!session.settle(60) || session.error()) return 2;
        if (session.lost() != missing) return 3;
        printf("%d %" PRIu64 " %" PRIu64 "\n", i, written, missing);
        if (begun != written) return 4;  // somebody wrote after the end
    }
    over = true;
    for (auto &parent : parents) parent.join();
}
