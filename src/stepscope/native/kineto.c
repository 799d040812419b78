/* The tokenizer's two bodies, one per kind of processor, and what they share: see kineto.h. */
#include "kineto_state.h"

/* Returns one of the two expected names where it is what comes at p, else NULL. */
static inline ss_key *ss_expected(ss_keys *keys, ss_next *next, const char *p, const char *end) {
    for (int i = 0; i < 2 && next->place[i] >= 0; i++) {
        ss_key *key = &keys->key[next->place[i]];
        if (end - p <= key->length || !ss_equal(p, key->text, key->length)) continue;
        if (i) next->place[1] = next->place[0], next->place[0] = (int32_t)(key - keys->key);
        return key;
    }
    return NULL;
}

/* Finds a name that was not expected; learns it where it is new and there is room, else returns NULL. */
static ss_key *ss_find_key(ss_keys *keys, ss_next *next, const char *text, int64_t length) {
    int32_t place = ss_learn(keys, text, length);
    if (place < 0) return NULL;
    next->place[1] = next->place[0];
    next->place[0] = place;
    return &keys->key[place];
}

/* Bytes that may follow a number, a name or a literal. */
static const bool ss_may_follow[256] = {
    [','] = true, ['}'] = true, [']'] = true, [' '] = true, ['\n'] = true, ['\r'] = true, ['\t'] = true,
};

/* Returns how long the text of a code is where the same value comes at p again, else 0. A value that begins with the same
 * bytes and has nothing more is the same: quotes and brackets close where they closed before. */
static inline int64_t ss_again(const ss_pool *pool, int32_t code, const char *p, const char *end) {
    int64_t length;
    if (code < 0) return 0;
    const char *text = ss_text(pool, code, &length);
    return end - p > length && ss_equal(p, text, length) && ss_may_follow[(uint8_t)p[length]] ? length : 0;
}

/* Returns whether [p, end) is a JSON number, and its value rounded as Python's float() does. */
static bool ss_real(const char *p, const char *end, double *result) {
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *begin = p;
    bool negative = p < end && *p == '-';
    uint64_t mantissa = 0;
    int digits = 0, decimals = 0;
    p += negative;
    const char *first = p;
    for (; p < end && (uint8_t)(*p - '0') < 10; p++, digits++) mantissa = mantissa * 10 + (uint64_t)(*p - '0');
    if (!digits || (*first == '0' && digits > 1)) return false;
    if (p < end && *p == '.') {
        for (p++; p < end && (uint8_t)(*p - '0') < 10; p++, decimals++) mantissa = mantissa * 10 + (uint64_t)(*p - '0');
        if (!decimals) return false;
    }
    if (p == end && digits + decimals <= 15 && decimals <= 22) {
        /* Both are exact, so the quotient is rounded once. */
        double value = (double)mantissa / power[decimals];
        *result = negative ? -value : value;
        return true;
    }
    return ss_slow_real(begin, end, result);
}

/* Returns the class of an event by its phase and category, and for marks by its name. */
static inline int32_t ss_class_of(ss_tokenizer *t, const ss_event *e) {
    if (e->phase == 'X' || e->phase == 'B') {
        if (e->category < 0) return t->other;
        int8_t known = t->pool.class_number[e->category];
        return known >= 0 ? known : ss_look_up_category(t, e->category);
    }
    if (e->phase == 'i') return e->name == t->memory_name ? t->memory : t->none;
    return e->phase == 'C' || e->phase == 'M' ? t->other : t->none;
}

/* Appends a row without values to a class; returns its number, or a negative error. */
static inline int64_t ss_new_row(ss_tokenizer *t, int32_t number) {
    ss_class *rows = &t->classes[number];
    if (rows->rows == rows->capacity && ss_grow_class(rows)) return -SS_NO_MEMORY;
    rows->event[rows->rows] = t->rows;
    return rows->rows++;
}

/* Appends a row for an event without arguments. */
static int ss_new_row_whole(ss_tokenizer *t, int32_t number) {
    int64_t row = ss_new_row(t, number);
    if (row < 0) return -1;
    int32_t whole = t->classes[number].whole;
    if (whole < 0) return 0;
    int32_t code = ss_intern(&t->pool, "{}", 2);
    ((int32_t *)t->classes[number].column[whole].data)[row] = code < 0 ? -1 : code;
    return code < 0 ? -1 : 0;
}

/* Takes back the newest row of the class that only some events have, unless it holds the text that makes it one. */
static inline void ss_drop_unnamed(ss_tokenizer *t, int64_t row) {
    ss_class *rows = &t->classes[t->required_class];
    if (((int32_t *)rows->column[t->required_column].data)[row] >= 0) return;
    ss_clear_rows(rows, row, row + 1);
    rows->rows--;
}

static inline void ss_append(ss_tokenizer *t, const ss_event *e) {
    int64_t row = t->rows++;
    ((uint8_t *)t->base[SS_PHASE])[row] = e->phase;
    ((uint8_t *)t->base[SS_CLASS])[row] = (uint8_t)e->class_number;
    ((int32_t *)t->base[SS_CATEGORY])[row] = e->category;
    ((int32_t *)t->base[SS_NAME])[row] = e->name;
    ((int32_t *)t->base[SS_PROCESS])[row] = e->process;
    ((int32_t *)t->base[SS_THREAD])[row] = e->thread;
    ((int64_t *)t->base[SS_ID])[row] = e->id;
    ((int64_t *)t->base[SS_TS])[row] = e->ts;
    ((int64_t *)t->base[SS_DUR])[row] = e->dur;
}

#define SS(name) ss_plain_##name
#define SS_TARGET
#define SS_AVX2 0
#include "kineto_body.h"
#undef SS
#undef SS_TARGET
#undef SS_AVX2

#if defined(__x86_64__) && defined(__GNUC__)
#define SS_HAS_AVX2 1
#include <immintrin.h>
#define SS(name) ss_avx2_##name
#define SS_TARGET __attribute__((target("avx2,bmi")))
#define SS_AVX2 1
#include "kineto_body.h"
#else
#define SS_HAS_AVX2 0
#endif

bool ss_processor_is_fast(void) {
#if SS_HAS_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
#else
    return false;
#endif
}

int64_t ss_tokenize(ss_tokenizer *t, const char *text, int64_t length, int32_t last) {
    int64_t rows = t->rows, class_rows[SS_CLASSES];
    for (int i = 0; i < SS_CLASSES; i++) class_rows[i] = t->classes[i].rows;
    t->text = text;
    t->error = 0;
    const char *end = text + length, *reached;
#if SS_HAS_AVX2
    reached = t->fast ? ss_avx2_events(t, text, end, last) : ss_plain_events(t, text, end, last);
#else
    reached = ss_plain_events(t, text, end, last);
#endif
    t->text = NULL;
    if (reached) return reached - text;
    t->rows = rows;
    for (int i = 0; i < SS_CLASSES; i++) {
        ss_clear_rows(&t->classes[i], class_rows[i], t->classes[i].rows);
        t->classes[i].rows = class_rows[i];
    }
    return -t->error;
}
