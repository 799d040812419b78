/* The tokenizer: see kineto.h.
 *
 * Functions that read take a pointer into the text and its end, read nothing at or behind the end, and return a pointer
 * behind what they read, or NULL with the reason in the tokenizer.
 */
#include "kineto_state.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Returns that of the two expected names which comes at p, led as it was led last; else NULL. */
static inline ss_key *ss_expected(ss_keys *keys, ss_next *next, bool first, const char *p, const char *end) {
    for (int i = 0; i < 2 && next->place[i] >= 0; i++) {
        ss_key *key = &keys->key[next->place[i]];
        int64_t length = key->lead_length;
        if (!length || key->lead_is_first != first || end - p <= length || !ss_equal(p, key->lead, length)) continue;
        if (i) next->place[1] = next->place[0], next->place[0] = (int32_t)(key - keys->key);
        return key;
    }
    return NULL;
}

/* Finds a name that was not expected; learns it where it is new and there is room. */
static ss_key *ss_find_key(ss_keys *keys, ss_next *next, const char *text, int64_t length) {
    int32_t place = ss_learn(keys, text, length);
    if (place < 0) return &keys->unknown;
    if (place != next->place[0]) next->place[1] = next->place[0];
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
    return e->phase == 'C' || e->phase == 'M' ? t->samples : t->none;
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

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* Returns whether eight bytes are digits; and the number they are, added up in pairs, then pairs of pairs. */
static inline bool ss_eight_digits(const char *p) {
    uint64_t v = ss_load8(p);
    return !(((v + 0x4646464646464646u) | (v - 0x3030303030303030u)) & 0x8080808080808080u);
}

static inline uint64_t ss_eight(const char *p) {
    uint64_t v = ss_load8(p) - 0x3030303030303030u;
    v = v * 10 + (v >> 8);
    return (((v & 0x000000FF000000FFu) * 0x000F424000000064u) + (((v >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u)) >> 32;
}
#else
static inline bool ss_eight_digits(const char *p) { return (void)p, false; }
static inline uint64_t ss_eight(const char *p) { return (void)p, 0; }
#endif

static const char *fail(ss_tokenizer *t, int error, const char *at) {
    t->error = error;
    t->position = at - t->text;
    return NULL;
}

/* Returns a pointer to the closing quote of a string, given one behind the opening quote; NULL if it does not end. */
static inline const char *string_end(const char *p, const char *end) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    while (end - p >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash)));
        if (!mask) {
            p += 16;
            continue;
        }
        p += __builtin_ctz(mask);
        if (*p == '"') return p;
        if (end - p < 2) return NULL;
        p += 2;
    }
#endif
    while (p < end) {
        if (*p == '"') return p;
        if (*p == '\\' && end - p < 2) return NULL;
        p += *p == '\\' ? 2 : 1;
    }
    return NULL;
}

/* Skips an object or a list; brackets must match, as a bit per level records. */
static const char *skip_nested(ss_tokenizer *t, const char *p, const char *end) {
    uint64_t is_list[SS_MAX_DEPTH / 64];
    int depth = 0;
    const char *begin = p;
    while (p < end) {
        char c = *p;
        if (c == '"') {
            p = string_end(p + 1, end);
            if (!p) return fail(t, SS_CUT, begin);
        } else if (c == '[' || c == '{') {
            if (depth == SS_MAX_DEPTH) return fail(t, SS_TOO_DEEP, p);
            uint64_t bit = 1ull << (depth & 63), *word = &is_list[depth >> 6];
            *word = c == '[' ? (depth & 63 ? *word : 0) | bit : (depth & 63 ? *word : 0) & ~bit;
            depth++;
        } else if (c == ']' || c == '}') {
            depth--;
            if ((is_list[depth >> 6] >> (depth & 63) & 1) != (c == ']')) return fail(t, SS_NOT_JSON, p);
            if (!depth) return p + 1;
        }
        p++;
    }
    return fail(t, SS_CUT, begin);
}

static inline const char *skip_white(const char *p, const char *end) {
    if (p < end && *p > ' ') return p;
    while (end - p >= 8 && ss_load8(p) == 0x2020202020202020u) p += 8;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline const char *skip_value(ss_tokenizer *t, const char *p, const char *end) {
    const char *begin = p;
    if (p == end) return fail(t, SS_CUT, p);
    if (*p == '"') {
        p = string_end(p + 1, end);
        return p ? p + 1 : fail(t, SS_CUT, begin);
    }
    if (*p == '[' || *p == '{') return skip_nested(t, p, end);
    while (p < end && !ss_may_follow[(uint8_t)*p]) p++;
    if (p == end) return fail(t, SS_CUT, begin);
    return p > begin ? p : fail(t, SS_NOT_JSON, p);
}

static inline bool is_null(const char *p, const char *end) {
    return end - p >= 4 && !memcmp(p, "null", 4);
}

/* Reads the digits of a number of at most `limit` digits; JSON forbids leading zeros. NULL: not such a number. */
static inline const char *read_digits(const char *p, const char *end, int limit, uint64_t *value) {
    const char *begin = p;
    uint64_t v = 0;
    while (end - p >= 8 && p - begin <= limit - 8 && ss_eight_digits(p)) v = v * 100000000 + ss_eight(p), p += 8;
    while (p < end && (uint8_t)(*p - '0') < 10 && p - begin <= limit) v = v * 10 + (uint64_t)(*p++ - '0');
    *value = v;
    if (p == begin || p - begin > limit || (*begin == '0' && p - begin > 1)) return NULL;
    return p;
}

static inline const char *read_integer(ss_tokenizer *t, const char *p, const char *end, bool is_unsigned,
                                                int64_t *result) {
    const char *begin = p;
    if (is_null(p, end)) return p + 4;
    bool negative = p < end && *p == '-';
    uint64_t value;
    /* 19 digits cannot overflow 64 bits unsigned. */
    p = read_digits(p + negative, end, 19, &value);
    if (!p || (p < end && !ss_may_follow[(uint8_t)*p])) return fail(t, SS_UNUSUAL, begin);
    if (value > INT64_MAX && (!is_unsigned || negative || value == 1ull << 63)) return fail(t, SS_UNUSUAL, begin);
    *result = negative ? -(int64_t)value : (int64_t)value;
    return p;
}

/* Reads µs and gives ns, exactly; digits beyond the nanosecond are rounded half up. */
static inline const char *read_time(ss_tokenizer *t, const char *p, const char *end, int64_t *result) {
    const char *begin = p;
    if (is_null(p, end)) return p + 4;
    bool negative = p < end && *p == '-';
    uint64_t whole, nanoseconds = 0;
    p = read_digits(p + negative, end, 18, &whole);
    if (!p || whole > 9000000000000000u) return fail(t, SS_UNUSUAL, begin);
    if (p < end && *p == '.') {
        static const unsigned weight[] = {100, 10, 1};
        const char *first = ++p;
        for (; p < end && (uint8_t)(*p - '0') < 10; p++) {
            unsigned digit = (unsigned)(*p - '0');
            if (p - first < 3) nanoseconds += digit * weight[p - first];
            if (p - first == 3) nanoseconds += digit >= 5;
        }
        if (p == first) return fail(t, SS_UNUSUAL, begin);
    }
    if (p < end && !ss_may_follow[(uint8_t)*p]) return fail(t, SS_UNUSUAL, begin);
    int64_t value = (int64_t)(whole * 1000 + nanoseconds);
    *result = negative ? -value : value;
    return p;
}

/* Reads a time that may be a text. */
static const char *read_quoted_time(ss_tokenizer *t, const char *p, const char *end, int64_t *result) {
    const char *begin = p;
    if (p == end || *p != '"' || !t->quoted) return read_time(t, p, end, result);
    const char *close = string_end(p + 1, end);
    if (!close) return fail(t, SS_CUT, begin);
    /* Up to the quote, so that nothing but a time may stand there; `null` in quotes is none. */
    p = p[1] == 'n' ? NULL : read_time(t, p + 1, close, result);
    return p == close ? close + 1 : fail(t, SS_UNUSUAL, begin);
}

static const char *read_real(ss_tokenizer *t, const char *p, const char *end, double *result) {
    const char *begin = p;
    if (is_null(p, end)) return p + 4;
    while (p < end && !ss_may_follow[(uint8_t)*p]) p++;
    return ss_real(begin, p, result) ? p : fail(t, SS_UNUSUAL, begin);
}

/* Reads what lies between two values, and remembers it as the lead of the name in it. */
static const char *read_lead(ss_tokenizer *t, ss_keys *keys, ss_next *expected, bool first, const char *p, const char *end,
                             ss_key **key) {
    const char *begin = p;
    p = skip_white(p, end);
    if (p < end && *p == '}') return p + 1;
    if (p < end && !first && *p != ',') return fail(t, SS_NOT_JSON, p);
    if (p < end && !first) p = skip_white(p + 1, end);
    if (p == end) return fail(t, SS_CUT, p);
    if (*p != '"') return fail(t, SS_NOT_JSON, p);
    const char *close = string_end(p + 1, end);
    if (!close) return fail(t, SS_CUT, p);
    *key = ss_find_key(keys, expected, p, close + 1 - p);
    p = skip_white(close + 1, end);
    if (p == end) return fail(t, SS_CUT, p);
    if (*p != ':') return fail(t, SS_NOT_JSON, p);
    p = skip_white(p + 1, end);
    bool fits = p - begin <= SS_LONGEST_LEAD;
    if (fits) memcpy((*key)->lead, begin, (size_t)(p - begin));
    (*key)->lead_length = fits ? (uint8_t)(p - begin) : 0;
    (*key)->lead_is_first = first;
    return p;
}

/* Goes from a value, or from behind the brace (`first`), to the next value; `*key` is its name, NULL at the object's end.
 * `expected` are the names that mostly come here. */
static inline const char *next_member(ss_tokenizer *t, ss_keys *keys, ss_next *expected, bool first, const char *p,
                                      const char *end, ss_key **key) {
    *key = ss_expected(keys, expected, first, p, end);
    if (!*key) return read_lead(t, keys, expected, first, p, end, key);
    p += (*key)->lead_length;
    return *p <= ' ' ? skip_white(p, end) : p;
}

static inline const char *read_argument(ss_tokenizer *t, ss_key *key, int64_t row, const char *p,
                                                 const char *end) {
    ss_column *column = &t->classes[key->group].column[key->column];
    if (key->type == SS_INTEGER || key->type == SS_UNSIGNED)
        return read_integer(t, p, end, key->type == SS_UNSIGNED, (int64_t *)column->data + row);
    if (key->type == SS_REAL) return read_real(t, p, end, (double *)column->data + row);
    int32_t *code = (int32_t *)column->data + row;
    int64_t again = ss_again(&t->pool, key->last, p, end);
    if (again) {
        *code = key->last;
        return p + again;
    }
    const char *begin = p;
    p = skip_value(t, p, end);
    if (!p || (p - begin == 4 && is_null(begin, end))) return p;
    int32_t found = ss_intern(&t->pool, begin, p - begin);
    if (found < 0) return fail(t, -found, begin);
    key->last = *code = found;
    return p;
}

/* Reads the arguments of an event of a class into a new row of that class. */
static const char *read_arguments(ss_tokenizer *t, int32_t number, const char *p, const char *end) {
    ss_class *rows = &t->classes[number];
    ss_keys *keys = &t->keys[number];
    const char *begin = p;
    int64_t row = ss_new_row(t, number);
    if (row < 0) return fail(t, SS_NO_MEMORY, p);
    int64_t second = -1; /* row in the class that only some events have */
    ss_next *expected = &keys->first;
    ss_key *key;
    for (p++;; expected = &key->next) {
        if (!(p = next_member(t, keys, expected, expected == &keys->first, p, end, &key))) return NULL;
        if (!key) break;
        if (key->column < 0) {
            p = skip_value(t, p, end);
        } else {
            if (key->group != number && second < 0 && (second = ss_new_row(t, key->group)) < 0)
                return fail(t, SS_NO_MEMORY, p);
            p = read_argument(t, key, key->group == number ? row : second, p, end);
        }
        if (!p) return NULL;
    }
    if (second >= 0) ss_drop_unnamed(t, second);
    if (rows->whole < 0) return p;
    int32_t code = ss_intern(&t->pool, begin, p - begin);
    if (code < 0) return fail(t, -code, begin);
    ((int32_t *)rows->column[rows->whole].data)[row] = code;
    return p;
}

/* Reads a text, or for processes, threads and identifiers an integer, and gives its code; null has none. */
static inline const char *read_label(ss_tokenizer *t, int column, const char *p, const char *end,
                                              int32_t *code) {
    const char *begin = p;
    int64_t again = ss_again(&t->pool, t->last[column], p, end);
    if (again) {
        *code = t->last[column];
        return p + again;
    }
    if (p < end && *p == '"') {
        p = string_end(p + 1, end);
        if (!p) return fail(t, SS_CUT, begin);
        p++;
    } else if (is_null(p, end)) {
        return p + 4;
    } else if (p < end && (column == SS_PROCESS || column == SS_THREAD || column == SS_ID)) {
        int64_t ignored;
        if (!(p = read_integer(t, p, end, false, &ignored))) return NULL;
        if (p - begin == 2 && !memcmp(begin, "-0", 2)) return fail(t, SS_UNUSUAL, begin);
    } else {
        return fail(t, p < end ? SS_UNUSUAL : SS_CUT, begin);
    }
    int32_t found = ss_intern(&t->pool, begin, p - begin);
    if (found < 0) return fail(t, -found, begin);
    t->last[column] = *code = found;
    return p;
}

static const char *read_quoted_id(ss_tokenizer *t, const char *p, const char *end, int64_t *id) {
    int32_t code = -1;
    p = read_label(t, SS_ID, p, end, &code);
    *id = code < 0 ? SS_ABSENT : code;
    return p;
}

static inline const char *read_phase(ss_tokenizer *t, const char *p, const char *end, uint8_t *phase) {
    if (p == end) return fail(t, SS_CUT, p);
    if (*p != '"') return fail(t, SS_UNUSUAL, p);
    if (end - p > 2 && p[2] == '"' && p[1] > 32 && p[1] < 127 && p[1] != '"' && p[1] != '\\') {
        *phase = (uint8_t)p[1];
        return p + 3;
    }
    const char *close = string_end(p + 1, end);
    if (!close) return fail(t, SS_CUT, p);
    *phase = 0;
    return close + 1;
}

/* Reads the arguments now where phase, category and name are known, which decide the class; else later. */
static const char *read_args(ss_tokenizer *t, ss_event *e, const char *p, const char *end) {
    if (p == end) return fail(t, SS_CUT, p);
    if (is_null(p, end)) return p + 4;
    if (*p != '{') return fail(t, SS_UNUSUAL, p);
    const unsigned deciding = 1u << SS_PHASE | 1u << SS_CATEGORY | 1u << SS_NAME;
    if ((e->seen & deciding) != deciding) {
        e->args = p;
        return skip_nested(t, p, end);
    }
    e->class_number = ss_class_of(t, e);
    e->classified = true;
    if (e->class_number == t->none) return skip_nested(t, p, end);
    return read_arguments(t, e->class_number, p, end);
}

/* Reads the value of a member of an event. */
static inline const char *read_member(ss_tokenizer *t, ss_event *e, int column, const char *p,
                                               const char *end) {
    if (e->seen >> column & 1 || (e->classified && column <= SS_NAME)) return fail(t, SS_UNUSUAL, p);
    e->seen |= 1u << column;
    switch (column) {
    case SS_PHASE: return read_phase(t, p, end, &e->phase);
    case SS_CATEGORY: return read_label(t, column, p, end, &e->category);
    case SS_NAME: return read_label(t, column, p, end, &e->name);
    case SS_PROCESS: return read_label(t, column, p, end, &e->process);
    case SS_THREAD: return read_label(t, column, p, end, &e->thread);
    case SS_ID: return t->quoted ? read_quoted_id(t, p, end, &e->id) : read_integer(t, p, end, false, &e->id);
    case SS_TS: return read_quoted_time(t, p, end, &e->ts);
    case SS_DUR: return read_quoted_time(t, p, end, &e->dur);
    default: return read_args(t, e, p, end);
    }
}

/* Makes a row of an event that has been read, and reads its arguments where that had to wait. */
static bool finish_event(ss_tokenizer *t, ss_event *e, const char *end) {
    if (!e->classified) {
        e->class_number = ss_class_of(t, e);
        bool wanted = e->class_number != t->none;
        if (wanted && e->args && !read_arguments(t, e->class_number, e->args, end)) return false;
        if (wanted && !e->args && ss_new_row_whole(t, e->class_number)) return fail(t, SS_NO_MEMORY, end);
    }
    ss_append(t, e);
    return true;
}

/* Reads one event, given a pointer to its brace. */
static const char *read_event(ss_tokenizer *t, const char *p, const char *end) {
    ss_event e = {.ts = SS_ABSENT, .dur = SS_ABSENT, .id = SS_ABSENT, .category = -1, .name = -1, .process = -1, .thread = -1};
    if (t->rows == t->capacity && ss_grow_rows(t)) return fail(t, SS_NO_MEMORY, p);
    ss_next *expected = &t->members.first;
    ss_key *key;
    for (p++;; expected = &key->next) {
        if (!(p = next_member(t, &t->members, expected, expected == &t->members.first, p, end, &key))) return NULL;
        if (!key) break;
        p = key->column >= 0 ? read_member(t, &e, key->column, p, end) : skip_value(t, p, end);
        if (!p) return NULL;
    }
    return finish_event(t, &e, p) ? p : NULL;
}

/* Reads events up to the end of the text or, where it is allowed, of the list. */
static const char *read_events(ss_tokenizer *t, const char *p, const char *end, bool last) {
    for (;;) {
        while (p < end && (ss_may_follow[(uint8_t)*p] && *p != '}' && *p != ']')) p++;
        if (p == end) return last ? fail(t, SS_CUT, p) : p;
        if (*p == ']') return last ? p + 1 : fail(t, SS_LIST_ENDED, p);
        if (*p != '{') return fail(t, SS_UNUSUAL, p);
        if (!(p = read_event(t, p, end))) return NULL;
    }
}

int64_t ss_tokenize(ss_tokenizer *t, const char *text, int64_t length, int32_t last) {
    int64_t rows = t->rows, class_rows[SS_CLASSES];
    for (int i = 0; i < SS_CLASSES; i++) class_rows[i] = t->classes[i].rows;
    t->text = text;
    t->error = 0;
    const char *reached = read_events(t, text, text + length, last);
    t->text = NULL;
    if (reached) return reached - text;
    t->rows = rows;
    for (int i = 0; i < SS_CLASSES; i++) {
        ss_clear_rows(&t->classes[i], class_rows[i], t->classes[i].rows);
        t->classes[i].rows = class_rows[i];
    }
    return -t->error;
}
