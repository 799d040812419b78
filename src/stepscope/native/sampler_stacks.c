/* The stack of a thread that runs on while it is read, and the tables in which each stack stands once.
 *
 * A thread's frames lie in a chunk of memory. It is copied, walked, and copied again: from the root inwards, the first
 * frame that differs ends the stack. What is left existed, if it is not all of the stack (without the second copy, 1 to
 * 3 % of the stacks of a busy program never existed).
 *
 * A code object is known by its address and by what it points to; both are compared again after its texts were read,
 * as it may be freed meanwhile. Equal texts are one name, so that workers and generated code do not fill the tables.
 * Tables only grow, up to their ends: whoever takes them reads what lies below a number that was published after it.
 */
#define _GNU_SOURCE
#if defined(__linux__) && defined(__x86_64__)
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "sampler.h"

enum { DEPTH = 400, CHUNK = 1 << 16, HEADER = 256, THREAD_STATE = 1024, FRAME = 128, TRIES = 3 };
enum { CACHED = 1 << 13, LINES = 1 << 14, NAMES = 1 << 14, NODES = 1 << 18, TEXT = 1 << 24, LONGEST_TABLE = 1 << 16 };
/* Owners of frames from 3 on have no code: they stand where C calls Python. */
enum { FIRST_SHIM = 3, LAST_OWNER = 4 };

typedef struct {
    uint64_t type, file, qualname, lines;
    int32_t first;
} fingerprint;

typedef struct {
    uint64_t address, tick;
    fingerprint print;
    uint32_t serial, name;
} cached_code;

typedef struct {
    uint64_t hash;
    uint32_t text, table, end;
    int32_t first;
} code_name;

typedef struct {
    uint32_t name, offset;
    int32_t line;
} cached_line;

typedef struct {
    uint32_t parent, name;
    int32_t line;
} node;

/* Mapped when sampling begins; pages that are never used take no memory. Places in tables count from 1; 0 is none. */
static struct tables {
    cached_code code[CACHED];
    cached_line line[LINES];
    code_name name[NAMES];
    node node[NODES];
    uint32_t names_by_hash[NAMES * 2], nodes_by_hash[NODES * 2];
    char text[TEXT + 2 * LONGEST_TABLE];
} *tables;

static _Atomic uint32_t names, nodes;
static uint32_t text_end;
static uint64_t tick, trusted;

static char thread_state[THREAD_STATE], chunk[CHUNK], again[CHUNK], headers[DEPTH][HEADER];
static struct frame {
    uint64_t code, at, previous;
    int64_t offset;
    uint32_t name;
} frames[DEPTH];

#define AT(type, from, offset) (*(type *)((char *)(from) + (offset)))

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9ull;
    return x ^ x >> 32;
}

int ss_stacks_open(void) {
    void *made = mmap(0, sizeof *tables, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return -1;
    madvise(made, sizeof *tables, MADV_DONTFORK);
    tables = made;
    atomic_store(&names, 0);
    atomic_store(&nodes, 0);
    text_end = 0;
    return 0;
}

/* A forked child does not have the tables. */
void ss_stacks_close(int in_child) {
    if (tables && !in_child) munmap(tables, sizeof *tables);
    tables = NULL;
}

void ss_stacks_tick(uint64_t now, uint64_t for_ticks) { tick = now, trusted = for_ticks; }

static fingerprint print_of(const char *header) {
    return (fingerprint){AT(uint64_t, header, 8), AT(uint64_t, header, ss_at[SS_CODE_FILE]),
                         AT(uint64_t, header, ss_at[SS_CODE_QUALNAME]), AT(uint64_t, header, ss_at[SS_CODE_LINES]),
                         AT(int32_t, header, ss_at[SS_CODE_FIRST])};
}

static int same(const fingerprint *a, const fingerprint *b) {
    return a->type == b->type && a->file == b->file && a->qualname == b->qualname && a->lines == b->lines &&
           a->first == b->first;
}

static uint64_t character(const unsigned char *text, int kind, int64_t at) {
    return kind == 1 ? text[at] : kind == 2 ? AT(uint16_t, text, 2 * at) : AT(uint32_t, text, 4 * at);
}

static int put_utf8(char *to, uint64_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xC0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c >= 0xD800 && c < 0xE000) return to[0] = '?', 1;
    if (c < 0x10000)
        return to[0] = (char)(0xE0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63)), 3;
    if (c >= 0x110000) return to[0] = '?', 1;
    to[0] = (char)(0xF0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63));
    return to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63)), 4;
}

/* Writes the text of a str, in UTF-8 with a 0 behind it; at most its first 1,000 characters. Its length, or -1. */
static int64_t put_text(int pid, uint64_t object, char *to) {
    enum { MOST = 1000 };
    char header[HEADER];
    unsigned char content[4 * MOST];
    if (ss_read(pid, header, object, (size_t)ss_at[SS_TEXT_COMPACT]) < 0) return -1;
    int64_t length = AT(int64_t, header, ss_at[SS_TEXT_LENGTH]), written = 0;
    uint32_t state = AT(uint32_t, header, ss_at[SS_TEXT_STATE]);
    int kind = state >> 2 & 7, compact = state >> 5 & 1, ascii = state >> 6 & 1;
    if (!compact || length < 0 || length > 1 << 20 || (kind != 1 && kind != 2 && kind != 4)) return -1;
    if (length > MOST) length = MOST;
    uint64_t from = object + (uint64_t)ss_at[ascii ? SS_TEXT_ASCII : SS_TEXT_COMPACT];
    if (length && ss_read(pid, content, from, (size_t)(length * kind)) < 0) return -1;
    for (int64_t i = 0; i < length; i++) {
        uint64_t c = character(content, kind, i);
        written += put_utf8(to + written, c ? c : '?');
    }
    to[written] = 0;
    return written + 1;
}

/* Returns the place of the name whose text, table and first line lie at the end of the texts; 0 if they are full. */
static uint32_t name_of(uint32_t table, uint32_t end, int32_t first) {
    const char *text = tables->text + text_end;
    uint64_t hash = mix((uint64_t)(uint32_t)first + 1);
    for (uint32_t i = 0; i < end - text_end; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3ull;
    uint32_t slot = (uint32_t)(mix(hash) & (NAMES * 2 - 1)), found;
    for (; (found = tables->names_by_hash[slot]); slot = (slot + 1) & (NAMES * 2 - 1)) {
        code_name *n = &tables->name[found - 1];
        if (n->hash == hash && n->first == first && n->end - n->text == end - text_end &&
            !memcmp(tables->text + n->text, text, end - text_end))
            return found;
    }
    uint32_t count = names;
    if (count == NAMES || end > TEXT) return ss_sampler.lost++, 0;
    tables->name[count] = (code_name){hash, text_end, table, end, first};
    tables->names_by_hash[slot] = count + 1;
    text_end = end;
    atomic_store_explicit(&names, count + 1, memory_order_release);
    return count + 1;
}

static cached_code *cached(const ss_process *process, uint64_t address) {
    return &tables->code[mix(address ^ (uint64_t)process->serial << 48) & (CACHED - 1)];
}

/* Returns the name of the code at an address if it was found right a moment ago, else 0: 20 headers take 11 us to read.
 */
static uint32_t known(const ss_process *process, uint64_t address) {
    const cached_code *c = cached(process, address);
    return c->address == address && c->serial == process->serial && tick - c->tick < trusted ? c->name : 0;
}

static int is_code(ss_process *process, uint64_t type) {
    if (!process->code_type) {
        char name[8] = {0};
        uint64_t text; /* tp_name lies behind ob_refcnt, ob_type and ob_size */
        if (ss_read(process->pid, &text, type + 24, 8) < 0 || ss_read(process->pid, name, text, 5) < 0) return 0;
        if (!memcmp(name, "code", 5)) process->code_type = type;
    }
    return type == process->code_type;
}

/* Returns the name of the code object of which `header` is a copy; 0 if it is none, or was freed meanwhile. */
static uint32_t resolved(ss_process *process, uint64_t address, const char *header) {
    cached_code *c = cached(process, address);
    fingerprint print = print_of(header), later;
    if (!is_code(process, print.type)) return 0;
    if (c->name && c->address == address && c->serial == process->serial && same(&c->print, &print))
        return c->tick = tick, c->name;
    char repeated[HEADER], *text = tables->text + text_end;
    int64_t file = put_text(process->pid, print.file, text), qualname, size;
    if (file < 0 || (qualname = put_text(process->pid, print.qualname, text + file)) < 0) return 0;
    if (ss_read(process->pid, &size, print.lines + (uint64_t)ss_at[SS_BYTES_SIZE], 8) < 0 || size < 0) return 0;
    if (size > LONGEST_TABLE) size = LONGEST_TABLE;
    char *table = text + file + qualname;
    if (size && ss_read(process->pid, table, print.lines + (uint64_t)ss_at[SS_BYTES_DATA], (size_t)size) < 0)
        return 0;
    if (ss_read(process->pid, repeated, address, (size_t)ss_at[SS_CODE_SIZE]) < 0) return 0;
    later = print_of(repeated);
    if (!same(&print, &later)) return 0;
    uint32_t from = (uint32_t)(table - tables->text), name = name_of(from, from + (uint32_t)size, print.first);
    if (name) *c = (cached_code){address, tick, print, process->serial, name};
    return name;
}

static uint32_t varint(const unsigned char **at, const unsigned char *end) {
    uint32_t value = 0, shift = 0;
    while (*at < end) {
        unsigned char byte = *(*at)++;
        value |= (uint32_t)(byte & 63) << shift;
        if (!(byte & 64) || shift > 24) break;
        shift += 6;
    }
    return value;
}

/* Returns the line of an instruction by the table of locations (CPython's Objects/locations.md); 0 if it has none. */
static int32_t line_in_table(const code_name *n, int64_t offset) {
    const unsigned char *at = (unsigned char *)tables->text + n->table, *end = (unsigned char *)tables->text + n->end;
    int64_t reached = 0;
    int32_t line = n->first;
    while (at < end) {
        unsigned char entry = *at++;
        int kind = entry >> 3 & 15;
        reached += ((entry & 7) + 1) * 2;
        if (kind == 13 || kind == 14) {
            uint32_t by = varint(&at, end);
            line += by & 1 ? -(int32_t)(by >> 1) : (int32_t)(by >> 1);
        }
        if (kind == 14) varint(&at, end), varint(&at, end), varint(&at, end);
        if (kind >= 10 && kind <= 12) line += kind - 10, at += 2;
        if (kind < 10) at++;
        if (offset < reached) return kind == 15 ? 0 : line;
    }
    return 0;
}

static int32_t line_of(uint32_t name, int64_t offset) {
    cached_line *c = &tables->line[mix((uint64_t)name << 32 ^ (uint64_t)offset) & (LINES - 1)];
    if (c->name != name || c->offset != (uint32_t)offset)
        *c = (cached_line){name, (uint32_t)offset, line_in_table(&tables->name[name - 1], offset)};
    return c->line;
}

static uint32_t node_of(uint32_t parent, uint32_t name, int32_t line) {
    uint32_t slot = (uint32_t)(mix(mix((uint64_t)parent << 32 ^ name) ^ (uint64_t)(uint32_t)line) & (NODES * 2 - 1));
    for (uint32_t found; (found = tables->nodes_by_hash[slot]); slot = (slot + 1) & (NODES * 2 - 1)) {
        node *n = &tables->node[found - 1];
        if (n->parent == parent && n->name == name && n->line == line) return found;
    }
    uint32_t count = nodes;
    if (count == NODES) return ss_sampler.lost++, parent;
    tables->node[count] = (node){parent, name, line};
    tables->nodes_by_hash[slot] = count + 1;
    atomic_store_explicit(&nodes, count + 1, memory_order_release);
    return count + 1;
}

/* Copies the state of a thread and the chunk with its frames; that of the last time is nearly always the right one.
 * Returns the address of the innermost frame, 0 without one; -1 if they could not be read. */
static int64_t copy_frames(int pid, ss_walked *t) {
    for (int attempt = 0; attempt < TRIES; attempt++) {
        uint64_t cframe[3] = {0};
        struct iovec to[3] = {{thread_state, (size_t)ss_at[SS_THREAD_TOP] + 8}};
        struct iovec from[3] = {{(void *)t->tstate, to[0].iov_len}};
        int count = 1;
        if (ss_at[SS_THREAD_CFRAME] && t->cframe)
            to[count] = (struct iovec){cframe, 24}, from[count++] = (struct iovec){(void *)t->cframe, 24};
        if (t->chunk)
            to[count] = (struct iovec){chunk, t->chunk_bytes},
            from[count++] = (struct iovec){(void *)t->chunk, t->chunk_bytes};
        if (ss_read_pieces(pid, to, from, count) < 0) {
            t->cframe = t->chunk = 0;
            continue;
        }
        uint64_t lies = AT(uint64_t, thread_state, ss_at[SS_THREAD_CHUNK]);
        uint64_t top = AT(uint64_t, thread_state, ss_at[SS_THREAD_TOP]);
        uint64_t current = ss_at[SS_THREAD_CFRAME] ? AT(uint64_t, thread_state, ss_at[SS_THREAD_CFRAME]) : 0;
        int whole = top <= lies + t->chunk_bytes || t->chunk_bytes == CHUNK;
        if (!lies || (lies == t->chunk && whole && current == t->cframe)) {
            if (AT(uint32_t, thread_state, ss_at[SS_THREAD_TID]) != t->tid) return -1;
            if (!lies) return 0; /* it has not called a function yet */
            if (!ss_at[SS_THREAD_CFRAME]) return AT(int64_t, thread_state, ss_at[SS_THREAD_FRAME]);
            return AT(int64_t, cframe, ss_at[SS_CFRAME_FRAME]);
        }
        /* Never past the end of the chunk: there may be nothing behind it. */
        uint64_t head[3], size = (top - lies + 2047) / 1024 * 1024;
        t->cframe = current, t->chunk = 0;
        if (top < lies || ss_read(pid, head, lies, sizeof head) < 0 || head[1] < 1024 || top > lies + head[1]) continue;
        t->chunk = lies;
        t->chunk_bytes = size < head[1] ? size : head[1];
        if (t->chunk_bytes > CHUNK) t->chunk_bytes = CHUNK;
    }
    return -1;
}

static const char *in_chunk(const ss_walked *t, const char *copy, uint64_t at) {
    uint64_t end = t->chunk + t->chunk_bytes;
    return at >= t->chunk && at + (uint64_t)ss_at[SS_FRAME_SIZE] <= end ? copy + (at - t->chunk) : NULL;
}

/* Reads one frame; 0 if it is sound. Frames of generators, and of deep recursion, lie outside the chunk. */
static int read_frame(int pid, const char *p, uint64_t at, struct frame *f, unsigned *owner) {
    char outside[FRAME];
    if (!p) {
        if (ss_read(pid, outside, at, (size_t)ss_at[SS_FRAME_SIZE]) < 0) return -1;
        p = outside;
    }
    *owner = AT(uint8_t, p, ss_at[SS_FRAME_OWNER]);
    f->at = at;
    f->previous = AT(uint64_t, p, ss_at[SS_FRAME_PREVIOUS]);
    f->code = AT(uint64_t, p, ss_at[SS_FRAME_CODE]) & ~7ull; /* from 3.14 on, the lowest bits are tags */
    f->offset = AT(int64_t, p, ss_at[SS_FRAME_INSTRUCTION]) - (int64_t)f->code - ss_at[SS_CODE_INSTRUCTIONS];
    f->name = 0;
    if (*owner > LAST_OWNER || f->previous == at) return -1;
    return *owner < FIRST_SHIM && (f->code < 4096 || f->offset < -2 || f->offset > 1 << 22) ? -1 : 0;
}

/* Returns how many of the frames, counted from the innermost, have changed since they were copied. */
static int changed(int pid, const ss_walked *t, int count) {
    for (int i = count - 1; i >= 0; i--) {
        struct frame now;
        unsigned owner;
        if (read_frame(pid, in_chunk(t, again, frames[i].at), frames[i].at, &now, &owner) < 0) return i + 1;
        if (now.code != frames[i].code || now.previous != frames[i].previous) return i + 1;
        if (i && now.offset != frames[i].offset) return i; /* it went on: what it had called is not right */
    }
    return 0;
}

static int walk_once(ss_process *process, ss_walked *t, uint32_t *stack, int *kept) {
    struct iovec to[DEPTH + 1], from[DEPTH + 1];
    int count = 0, pieces = 0, pid = process->pid;
    *stack = 0, *kept = 0;
    int64_t innermost = copy_frames(pid, t);
    if (innermost <= 0) return innermost ? SS_TORN : SS_WHOLE;
    for (uint64_t at = (uint64_t)innermost, looks = 0; at; at = frames[count].previous, looks++) {
        struct frame f;
        unsigned owner;
        if (count == DEPTH - 1 || looks == 2 * DEPTH) {
            ss_sampler.cut++;
            break;
        }
        if (read_frame(pid, in_chunk(t, chunk, at), at, &f, &owner) < 0) return SS_TORN;
        frames[count] = f;
        if (owner < FIRST_SHIM) frames[++count].previous = f.previous;
    }
    to[pieces] = (struct iovec){again, t->chunk_bytes};
    from[pieces++] = (struct iovec){(void *)t->chunk, t->chunk_bytes};
    for (int i = 0; i < count; i++) {
        frames[i].name = i ? known(process, frames[i].code) : 0;
        if (frames[i].name) continue;
        to[pieces] = (struct iovec){headers[i], (size_t)ss_at[SS_CODE_SIZE]};
        from[pieces++] = (struct iovec){(void *)frames[i].code, (size_t)ss_at[SS_CODE_SIZE]};
    }
    if (ss_read_pieces(pid, to, from, pieces) < 0) return SS_TORN;
    int first = changed(pid, t, count);
    for (int i = count - 1; i >= first; i--) {
        uint32_t name = frames[i].name ? frames[i].name : resolved(process, frames[i].code, headers[i]);
        if (!name) return SS_TORN;
        *stack = node_of(*stack, name, line_of(name, frames[i].offset < 0 ? 0 : frames[i].offset));
    }
    *kept = count - first;
    return first ? SS_MOVED : SS_WHOLE;
}

/* Reads the stack of a thread; of several attempts the one that kept most. Returns SS_WHOLE, SS_MOVED or SS_TORN. */
int ss_walk(ss_process *process, ss_walked *thread, uint32_t *stack) {
    int best = -1, result = SS_TORN;
    ss_sampler.walks++;
    for (int attempt = 0; attempt < TRIES && result != SS_WHOLE; attempt++) {
        uint32_t found;
        int kept, how = walk_once(process, thread, &found, &kept);
        if (how == SS_TORN || kept <= best || (how == SS_MOVED && !kept)) continue;
        best = kept, result = how, *stack = found;
    }
    ss_sampler.moved += result == SS_MOVED;
    ss_sampler.torn += result == SS_TORN;
    return result;
}

static uint8_t *put(uint8_t *to, uint64_t value) {
    for (; value > 127; value >>= 7) *to++ = (uint8_t)(value & 127) | 128;
    *to++ = (uint8_t)value;
    return to;
}

/* Writes stacks from number `first` on, three varints each: the stack outside the frame, its name, its line. `room` is
 * in bytes, of which a stack takes 15 at most. Returns the bytes written, and how many stacks in `count`. */
SS_SAMPLER_EXPORT int64_t ss_sampler_stacks(uint8_t *to, int64_t room, uint32_t first, uint32_t *count) {
    uint32_t end = tables ? atomic_load_explicit(&nodes, memory_order_acquire) : 0, i = first;
    uint8_t *at = to;
    for (; i < end && at + 15 <= to + room; i++) {
        const node *n = &tables->node[i];
        at = put(put(put(at, n->parent), n->name), (uint64_t)n->line);
    }
    *count = i > first ? i - first : 0;
    return at - to;
}

/* Writes the names from number `first` on, file and function with a 0 behind each. Returns as above. */
SS_SAMPLER_EXPORT int64_t ss_sampler_names(char *to, int64_t room, uint32_t first, uint32_t *count) {
    uint32_t end = tables ? atomic_load_explicit(&names, memory_order_acquire) : 0, i = first;
    int64_t used = 0;
    for (; i < end; i++) {
        const code_name *n = &tables->name[i];
        int64_t length = n->table - n->text;
        if (used + length > room) break;
        memcpy(to + used, tables->text + n->text, (size_t)length);
        used += length;
    }
    *count = i > first ? i - first : 0;
    return used;
}
#else
#include "sampler.h"

SS_SAMPLER_EXPORT int64_t ss_sampler_stacks(uint8_t *to, int64_t room, uint32_t first, uint32_t *count) {
    (void)to, (void)room, (void)first;
    *count = 0;
    return 0;
}

SS_SAMPLER_EXPORT int64_t ss_sampler_names(char *to, int64_t room, uint32_t first, uint32_t *count) {
    (void)to, (void)room, (void)first;
    *count = 0;
    return 0;
}
#endif
