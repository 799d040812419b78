/* What a tokenizer holds: columns that grow, a pool of distinct texts, and the description of the events. */
#ifndef STEPSCOPE_KINETO_STATE_H
#define STEPSCOPE_KINETO_STATE_H

#include "kineto.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    void *data;
    int32_t type; /* enum ss_type */
} ss_column;

/* The rows of one class of events; `event` is the row in the base columns. */
typedef struct {
    int64_t rows, capacity;
    int64_t *event;
    int32_t columns;
    int32_t whole; /* column for the arguments as a whole, -1: none */
    ss_column column[SS_MAX_FIELDS];
} ss_class;

/* The names that followed a name last, the latest first: names come in the same few orders again and again. -1: none. */
typedef struct {
    int32_t place[2];
} ss_next;

enum { SS_LONGEST_LEAD = 88 };

/* The name of a member or an argument, and the column of its value; -1: learnt, but not requested. */
typedef struct {
    const char *text; /* as written: with its quotes */
    int32_t length, column, type, group;
    int32_t last; /* code of the last value: it often comes again */
    ss_next next;
    /* What stood last between the value before (or the brace) and this value: comma, white space, name, colon. */
    char lead[SS_LONGEST_LEAD];
    uint8_t lead_length; /* 0: none, or too long */
    bool lead_is_first;  /* behind the brace, without a comma */
} ss_key;

typedef struct {
    ss_key key[SS_MAX_KEYS];
    int32_t count;
    ss_next first;
    ss_key unknown; /* stands for every name that did not fit */
    uint8_t slot[2 * SS_MAX_KEYS]; /* by hash: index + 1; 0: free */
} ss_keys;

/* Distinct texts, one behind the other in the arena; text i ends at end[i] and begins where text i - 1 ends. */
typedef struct {
    char *arena;
    int64_t arena_size, arena_capacity;
    int64_t *end;
    int8_t *class_number; /* of a text that is a category; -1: not looked up yet */
    int64_t count, capacity;
    uint64_t *slot; /* upper half: hash, lower half: code + 1; 0: free */
    int64_t slots;
} ss_pool;

typedef struct {
    char *text;
    int32_t length, class_number;
} ss_category;

struct ss_tokenizer {
    void *base[SS_BASE_COLUMNS];
    int64_t rows, capacity;
    ss_class classes[SS_CLASSES];
    ss_keys keys[SS_CLASSES]; /* arguments of each class */
    ss_keys members;          /* of an event: columns are those of enum ss_base_column, and SS_ARGS */
    ss_pool pool;
    ss_category category[SS_MAX_KEYS];
    int32_t categories;
    int32_t none, memory, other;               /* numbers of the classes that are not found by category */
    int32_t samples;                           /* that of counters and metadata */
    bool quoted;                               /* times may be texts, and so may identifiers, which are then codes */
    int32_t required_column, required_class;   /* rows of this class count only with this text */
    int32_t memory_name;                       /* code of the name of memory events */
    int32_t last[SS_BASE_COLUMNS];             /* code of the last value: it mostly comes again */
    const char *text;                          /* the chunk that is being read */
    int64_t position;
    int error;
};

/* An event while it is read. */
typedef struct {
    int64_t id, ts, dur;
    int32_t category, name, process, thread, class_number;
    unsigned seen; /* bit per member */
    uint8_t phase;
    bool classified;  /* the class is known and the arguments are read */
    const char *args; /* arguments that came before the class could be known */
} ss_event;


static inline uint64_t ss_load8(const char *p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

/* Reads [p, p + n) only. */
static inline uint32_t ss_hash(const char *p, int64_t n) {
    uint64_t h = (uint64_t)n * 0x9E3779B97F4A7C15u, v = 0;
    for (; n >= 8; p += 8, n -= 8) {
        h = (h ^ ss_load8(p)) * 0x9FB21C651E98DF25u;
        h ^= h >> 32;
    }
    memcpy(&v, p, (size_t)n);
    h = (h ^ v) * 0x9FB21C651E98DF25u;
    return (uint32_t)(h ^ (h >> 29)) | 1u;
}

/* The member `args` of an event, numbered behind the columns. */
enum { SS_ARGS = SS_BASE_COLUMNS };

/* Says that this memory will be used from end to end: large pages then cost a fraction of what small ones cost. */
void ss_expect_use(void *data, size_t size);

int ss_pool_grow_slots(ss_pool *pool);
int32_t ss_pool_append(ss_pool *pool, const char *text, int64_t length, uint64_t *slot, uint32_t hash);
int ss_grow_rows(ss_tokenizer *t);
int ss_grow_class(ss_class *rows);
void ss_clear_rows(ss_class *rows, int64_t from, int64_t to);
int32_t ss_learn(ss_keys *keys, const char *text, int64_t length);
int32_t ss_look_up_category(ss_tokenizer *t, int32_t code);
bool ss_slow_real(const char *p, const char *end, double *result);

/* memcmp for short texts, without the call. */
static inline bool ss_equal(const char *a, const char *b, int64_t n) {
    if (n >= 8) {
        for (int64_t i = 0; i < n - 8; i += 8)
            if (ss_load8(a + i) != ss_load8(b + i)) return false;
        return ss_load8(a + n - 8) == ss_load8(b + n - 8);
    }
    if (n >= 4) {
        uint32_t first[2], last[2];
        memcpy(&first[0], a, 4), memcpy(&first[1], b, 4);
        memcpy(&last[0], a + n - 4, 4), memcpy(&last[1], b + n - 4, 4);
        return first[0] == first[1] && last[0] == last[1];
    }
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static inline const char *ss_text(const ss_pool *pool, int32_t code, int64_t *length) {
    int64_t begin = code ? pool->end[code - 1] : 0;
    *length = pool->end[code] - begin;
    return pool->arena + begin;
}

static inline bool ss_same(const ss_pool *pool, int32_t code, const char *text, int64_t length) {
    int64_t n;
    const char *known = ss_text(pool, code, &n);
    return n == length && ss_equal(known, text, n);
}

/* Returns the code of a text, or a negative error. */
static inline int32_t ss_intern(ss_pool *pool, const char *text, int64_t length) {
    if (pool->count * 2 >= pool->slots && ss_pool_grow_slots(pool)) return -SS_NO_MEMORY;
    uint32_t hash = ss_hash(text, length);
    uint64_t mask = (uint64_t)pool->slots - 1, i = hash & mask;
    for (;; i = (i + 1) & mask) {
        uint64_t slot = pool->slot[i];
        if (!slot) return ss_pool_append(pool, text, length, &pool->slot[i], hash);
        if ((uint32_t)(slot >> 32) == hash && ss_same(pool, (int32_t)((uint32_t)slot - 1), text, length))
            return (int32_t)((uint32_t)slot - 1);
    }
}

#endif
