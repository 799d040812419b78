// torch's CPU allocator warns on std::cerr, and has no switch for it, at the first and at each thousandth block that is
// freed while memory is recorded and was allocated before. The program did not ask for that recording: we did.
#include "hush.h"

#include <exception>
#include <iostream>
#include <new>
#include <streambuf>
#include <string_view>

namespace stepscope {

namespace {

constexpr std::string_view LINE = "] Memory block of unknown size was allocated before the profiling started, profiler "
                                  "results will not include the deallocation event\n";

// The line begins with severity, time and file, and in a job with the rank before them: "[rank0]:[W1122 ...".
bool unasked(std::string_view text) {
    return text.size() > LINE.size() && text.front() == '[' && text.substr(text.size() - LINE.size()) == LINE &&
           text.find('\n') == text.size() - 1;
}

// Passes everything on to the buffer below, except for the line, which torch writes by a single call. It has no state
// of its own, so it is as thread-safe as the buffer below.
class Filter : public std::streambuf {
  public:
    explicit Filter(std::streambuf *below) : below(below) {}

    std::streambuf *const below;

  protected:
    std::streamsize xsputn(const char *text, std::streamsize length) override {
        return unasked({text, size_t(length)}) ? length : below->sputn(text, length);
    }

    int_type overflow(int_type c) override {
        return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c)
                                                               : below->sputc(traits_type::to_char_type(c));
    }

    int sync() override { return below->pubsync(); }
    void imbue(const std::locale &locale) override { below->pubimbue(locale); }
    std::streambuf *setbuf(char *space, std::streamsize length) override {
        return below->pubsetbuf(space, length) ? this : nullptr;
    }
    pos_type seekoff(off_type by, std::ios_base::seekdir from, std::ios_base::openmode mode) override {
        return below->pubseekoff(by, from, mode);
    }
    pos_type seekpos(pos_type to, std::ios_base::openmode mode) override { return below->pubseekpos(to, mode); }
};

// Never destroyed: another thread may be inside it, and the program may have put a buffer of its own above it, or may
// put it back later.
Filter *filter = nullptr;
int nested = 0;

// rdbuf() also forgets an error of the stream, such as that of a closed standard error; this does not.
void install(std::streambuf *buffer) {
    auto state = std::cerr.rdstate();
    std::cerr.rdbuf(buffer);
    try {
        std::cerr.setstate(state);
    } catch (const std::exception &) {
        // The program wants exceptions for errors of the stream. The state is set.
    }
}

}  // namespace

void hush() {
    if (nested++) return;
    std::streambuf *current = std::cerr.rdbuf();
    if (!current || current == filter) return;
    // A filter that has another buffer below may still be in use there: changing it could close a circle.
    if (!filter || filter->below != current) filter = new (std::nothrow) Filter(current);
    if (filter) install(filter);
}

void unhush() {
    if (!nested || --nested) return;
    if (filter && std::cerr.rdbuf() == filter) install(filter->below);
}

}  // namespace stepscope

// For recordings of Kineto: setup.py makes a library of this file alone, which needs nothing of torch. With the GIL held.
extern "C" __attribute__((visibility("default"))) void ss_hush(int on) { on ? stepscope::hush() : stepscope::unhush(); }
