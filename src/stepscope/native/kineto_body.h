/* The tokenizer proper, included once for every kind of processor: SS(name) names its functions, SS_TARGET compiles
 * them, SS_AVX2 says what they may use. Every function takes the place to read at and the end of the text, reads nothing
 * at or behind the end, and returns the place behind what it read, or NULL with t->error and t->position set. */

static SS_TARGET const char *SS(fail)(ss_tokenizer *t, int error, const char *at) {
    t->error = error;
    t->position = at - t->text;
    return NULL;
}

/* Returns the place of the closing quote of a string, given the place behind the opening one; NULL: there is none. */
static inline SS_TARGET const char *SS(string_end)(const char *p, const char *end) {
#if SS_AVX2
    const __m256i quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\');
    while (end - p >= 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)p);
        __m256i hit = _mm256_or_si256(_mm256_cmpeq_epi8(v, quote), _mm256_cmpeq_epi8(v, backslash));
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(hit);
        if (!mask) {
            p += 32;
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
static SS_TARGET const char *SS(skip_nested)(ss_tokenizer *t, const char *p, const char *end) {
    uint64_t is_list[SS_MAX_DEPTH / 64];
    int depth = 0;
    const char *begin = p;
    while (p < end) {
        char c = *p;
        if (c == '"') {
            p = SS(string_end)(p + 1, end);
            if (!p) return SS(fail)(t, SS_CUT, begin);
        } else if (c == '[' || c == '{') {
            if (depth == SS_MAX_DEPTH) return SS(fail)(t, SS_TOO_DEEP, p);
            uint64_t bit = 1ull << (depth & 63), *word = &is_list[depth >> 6];
            *word = c == '[' ? (depth & 63 ? *word : 0) | bit : (depth & 63 ? *word : 0) & ~bit;
            depth++;
        } else if (c == ']' || c == '}') {
            depth--;
            if ((is_list[depth >> 6] >> (depth & 63) & 1) != (c == ']')) return SS(fail)(t, SS_NOT_JSON, p);
            if (!depth) return p + 1;
        }
        p++;
    }
    return SS(fail)(t, SS_CUT, begin);
}

static inline SS_TARGET const char *SS(skip_white)(const char *p, const char *end) {
    if (p < end && *p > ' ') return p;
    while (end - p >= 8 && ss_load8(p) == 0x2020202020202020u) p += 8;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline SS_TARGET const char *SS(skip_value)(ss_tokenizer *t, const char *p, const char *end) {
    const char *begin = p;
    if (p == end) return SS(fail)(t, SS_CUT, p);
    if (*p == '"') {
        p = SS(string_end)(p + 1, end);
        return p ? p + 1 : SS(fail)(t, SS_CUT, begin);
    }
    if (*p == '[' || *p == '{') return SS(skip_nested)(t, p, end);
    while (p < end && !ss_may_follow[(uint8_t)*p]) p++;
    if (p == end) return SS(fail)(t, SS_CUT, begin);
    return p > begin ? p : SS(fail)(t, SS_NOT_JSON, p);
}

static inline SS_TARGET bool SS(is_null)(const char *p, const char *end) {
    return end - p >= 4 && !memcmp(p, "null", 4);
}

/* Reads the digits of a number of at most `limit` digits; leading zeros are no JSON. NULL: no such number. */
static inline SS_TARGET const char *SS(digits)(const char *p, const char *end, int limit, uint64_t *value) {
    const char *begin = p;
    uint64_t v = 0;
    while (p < end && (uint8_t)(*p - '0') < 10 && p - begin <= limit) v = v * 10 + (uint64_t)(*p++ - '0');
    *value = v;
    if (p == begin || p - begin > limit || (*begin == '0' && p - begin > 1)) return NULL;
    return p;
}

static inline SS_TARGET const char *SS(integer)(ss_tokenizer *t, const char *p, const char *end, bool is_unsigned,
                                                int64_t *result) {
    const char *begin = p;
    if (SS(is_null)(p, end)) return p + 4;
    bool negative = p < end && *p == '-';
    uint64_t value;
    /* 19 digits cannot overflow 64 bits unsigned. */
    p = SS(digits)(p + negative, end, 19, &value);
    if (!p || (p < end && !ss_may_follow[(uint8_t)*p])) return SS(fail)(t, SS_UNUSUAL, begin);
    if (value > INT64_MAX && (!is_unsigned || negative || value == 1ull << 63)) return SS(fail)(t, SS_UNUSUAL, begin);
    *result = negative ? -(int64_t)value : (int64_t)value;
    return p;
}

/* Reads µs and gives ns, exactly; digits beyond the nanosecond are rounded half up. */
static inline SS_TARGET const char *SS(time)(ss_tokenizer *t, const char *p, const char *end, int64_t *result) {
    const char *begin = p;
    if (SS(is_null)(p, end)) return p + 4;
    bool negative = p < end && *p == '-';
    uint64_t whole, nanoseconds = 0;
    p = SS(digits)(p + negative, end, 18, &whole);
    if (!p || whole > 9000000000000000u) return SS(fail)(t, SS_UNUSUAL, begin);
    if (p < end && *p == '.') {
        static const unsigned weight[] = {100, 10, 1};
        const char *first = ++p;
        for (; p < end && (uint8_t)(*p - '0') < 10; p++) {
            unsigned digit = (unsigned)(*p - '0');
            if (p - first < 3) nanoseconds += digit * weight[p - first];
            if (p - first == 3) nanoseconds += digit >= 5;
        }
        if (p == first) return SS(fail)(t, SS_UNUSUAL, begin);
    }
    if (p < end && !ss_may_follow[(uint8_t)*p]) return SS(fail)(t, SS_UNUSUAL, begin);
    int64_t value = (int64_t)(whole * 1000 + nanoseconds);
    *result = negative ? -value : value;
    return p;
}

static SS_TARGET const char *SS(real)(ss_tokenizer *t, const char *p, const char *end, double *result) {
    const char *begin = p;
    if (SS(is_null)(p, end)) return p + 4;
    while (p < end && !ss_may_follow[(uint8_t)*p]) p++;
    return ss_real(begin, p, result) ? p : SS(fail)(t, SS_UNUSUAL, begin);
}

/* Reads a name and the colon behind it. `expected` are the names that mostly come here; `*key` is NULL where the name is new and cannot be learnt. */
static inline SS_TARGET const char *SS(key)(ss_tokenizer *t, ss_keys *keys, ss_next *expected, const char *p,
                                            const char *end, ss_key **key) {
    *key = ss_expected(keys, expected, p, end);
    if (*key) {
        p += (*key)->length;
    } else {
        if (p == end) return SS(fail)(t, SS_CUT, p);
        if (*p != '"') return SS(fail)(t, SS_NOT_JSON, p);
        const char *close = SS(string_end)(p + 1, end);
        if (!close) return SS(fail)(t, SS_CUT, p);
        *key = ss_find_key(keys, expected, p, close + 1 - p);
        p = close + 1;
    }
    p = SS(skip_white)(p, end);
    if (p == end) return SS(fail)(t, SS_CUT, p);
    if (*p != ':') return SS(fail)(t, SS_NOT_JSON, p);
    return SS(skip_white)(p + 1, end);
}

/* Reads what follows a member: a comma (`*more`), or the end of the object. */
static inline SS_TARGET const char *SS(after_member)(ss_tokenizer *t, const char *p, const char *end, bool *more) {
    p = SS(skip_white)(p, end);
    if (p == end) return SS(fail)(t, SS_CUT, p);
    if (*p != ',' && *p != '}') return SS(fail)(t, SS_NOT_JSON, p);
    *more = *p == ',';
    return *more ? SS(skip_white)(p + 1, end) : p + 1;
}

static inline SS_TARGET const char *SS(argument)(ss_tokenizer *t, ss_key *key, int64_t row, const char *p,
                                                 const char *end) {
    ss_column *column = &t->classes[key->group].column[key->column];
    if (key->type == SS_INTEGER || key->type == SS_UNSIGNED)
        return SS(integer)(t, p, end, key->type == SS_UNSIGNED, (int64_t *)column->data + row);
    if (key->type == SS_REAL) return SS(real)(t, p, end, (double *)column->data + row);
    int32_t *code = (int32_t *)column->data + row;
    int64_t again = ss_again(&t->pool, key->last, p, end);
    if (again) {
        *code = key->last;
        return p + again;
    }
    const char *begin = p;
    p = SS(skip_value)(t, p, end);
    if (!p || (p - begin == 4 && SS(is_null)(begin, end))) return p;
    int32_t found = ss_intern(&t->pool, begin, p - begin);
    if (found < 0) return SS(fail)(t, -found, begin);
    key->last = *code = found;
    return p;
}

/* Reads the arguments of an event of a class into a new row of that class. */
static SS_TARGET const char *SS(arguments)(ss_tokenizer *t, int32_t number, const char *p, const char *end) {
    ss_class *rows = &t->classes[number];
    ss_keys *keys = &t->keys[number];
    const char *begin = p;
    int64_t row = ss_new_row(t, number);
    if (row < 0) return SS(fail)(t, SS_NO_MEMORY, p);
    int64_t second = -1; /* row in the class that only some events have */
    bool more = true;
    p = SS(skip_white)(p + 1, end);
    if (p < end && *p == '}') more = false, p++;
    ss_next *expected = &keys->first;
    while (more) {
        ss_key *key;
        if (!(p = SS(key)(t, keys, expected, p, end, &key))) return NULL;
        if (!key || key->column < 0) {
            p = SS(skip_value)(t, p, end);
        } else {
            if (key->group != number && second < 0 && (second = ss_new_row(t, key->group)) < 0)
                return SS(fail)(t, SS_NO_MEMORY, p);
            p = SS(argument)(t, key, key->group == number ? row : second, p, end);
        }
        if (!p || !(p = SS(after_member)(t, p, end, &more))) return NULL;
        if (key) expected = &key->next;
    }
    if (second >= 0) ss_drop_unnamed(t, second);
    if (rows->whole < 0) return p;
    int32_t code = ss_intern(&t->pool, begin, p - begin);
    if (code < 0) return SS(fail)(t, -code, begin);
    ((int32_t *)rows->column[rows->whole].data)[row] = code;
    return p;
}

/* Reads a text, or for processes and threads an integer, and gives its code; null has none. */
static inline SS_TARGET const char *SS(label)(ss_tokenizer *t, int column, const char *p, const char *end,
                                              int32_t *code) {
    const char *begin = p;
    int64_t again = ss_again(&t->pool, t->last[column], p, end);
    if (again) {
        *code = t->last[column];
        return p + again;
    }
    if (p < end && *p == '"') {
        p = SS(string_end)(p + 1, end);
        if (!p) return SS(fail)(t, SS_CUT, begin);
        p++;
    } else if (SS(is_null)(p, end)) {
        return p + 4;
    } else if (p < end && (column == SS_PROCESS || column == SS_THREAD)) {
        int64_t ignored;
        if (!(p = SS(integer)(t, p, end, false, &ignored))) return NULL;
        if (p - begin == 2 && !memcmp(begin, "-0", 2)) return SS(fail)(t, SS_UNUSUAL, begin);
    } else {
        return SS(fail)(t, p < end ? SS_UNUSUAL : SS_CUT, begin);
    }
    int32_t found = ss_intern(&t->pool, begin, p - begin);
    if (found < 0) return SS(fail)(t, -found, begin);
    t->last[column] = *code = found;
    return p;
}

static inline SS_TARGET const char *SS(phase)(ss_tokenizer *t, const char *p, const char *end, uint8_t *phase) {
    if (p == end) return SS(fail)(t, SS_CUT, p);
    if (*p != '"') return SS(fail)(t, SS_UNUSUAL, p);
    const char *close = SS(string_end)(p + 1, end);
    if (!close) return SS(fail)(t, SS_CUT, p);
    bool one = close - p == 2 && p[1] > 32 && p[1] < 127;
    *phase = one ? (uint8_t)p[1] : 0;
    return close + 1;
}

/* Reads the arguments now where phase, category and name are known, which decide the class; else later. */
static SS_TARGET const char *SS(args)(ss_tokenizer *t, ss_event *e, const char *p, const char *end) {
    if (p == end) return SS(fail)(t, SS_CUT, p);
    if (SS(is_null)(p, end)) return p + 4;
    if (*p != '{') return SS(fail)(t, SS_UNUSUAL, p);
    const unsigned deciding = 1u << SS_PHASE | 1u << SS_CATEGORY | 1u << SS_NAME;
    if ((e->seen & deciding) != deciding) {
        e->args = p;
        return SS(skip_nested)(t, p, end);
    }
    e->class_number = ss_class_of(t, e);
    e->classified = true;
    if (e->class_number == t->none) return SS(skip_nested)(t, p, end);
    return SS(arguments)(t, e->class_number, p, end);
}

/* Reads the value of a member of an event. */
static inline SS_TARGET const char *SS(member)(ss_tokenizer *t, ss_event *e, int column, const char *p,
                                               const char *end) {
    if (e->seen >> column & 1 || (e->classified && column <= SS_NAME)) return SS(fail)(t, SS_UNUSUAL, p);
    e->seen |= 1u << column;
    switch (column) {
    case SS_PHASE: return SS(phase)(t, p, end, &e->phase);
    case SS_CATEGORY: return SS(label)(t, column, p, end, &e->category);
    case SS_NAME: return SS(label)(t, column, p, end, &e->name);
    case SS_PROCESS: return SS(label)(t, column, p, end, &e->process);
    case SS_THREAD: return SS(label)(t, column, p, end, &e->thread);
    case SS_ID: return SS(integer)(t, p, end, false, &e->id);
    case SS_TS: return SS(time)(t, p, end, &e->ts);
    case SS_DUR: return SS(time)(t, p, end, &e->dur);
    default: return SS(args)(t, e, p, end);
    }
}

/* Makes a row of an event that has been read, and reads its arguments where that had to wait. */
static SS_TARGET bool SS(finish)(ss_tokenizer *t, ss_event *e, const char *end) {
    if (!e->classified) {
        e->class_number = ss_class_of(t, e);
        bool wanted = e->class_number != t->none;
        if (wanted && e->args && !SS(arguments)(t, e->class_number, e->args, end)) return false;
        if (wanted && !e->args && ss_new_row_whole(t, e->class_number)) return SS(fail)(t, SS_NO_MEMORY, end);
    }
    ss_append(t, e);
    return true;
}

/* Reads one event, given the place of its brace. */
static SS_TARGET const char *SS(event)(ss_tokenizer *t, const char *p, const char *end) {
    ss_event e = {.ts = SS_ABSENT, .dur = SS_ABSENT, .id = SS_ABSENT, .category = -1, .name = -1, .process = -1, .thread = -1};
    if (t->rows == t->capacity && ss_grow_rows(t)) return SS(fail)(t, SS_NO_MEMORY, p);
    p = SS(skip_white)(p + 1, end);
    bool more = !(p < end && *p == '}');
    if (!more) p++;
    ss_next *expected = &t->members.first;
    while (more) {
        ss_key *key;
        if (!(p = SS(key)(t, &t->members, expected, p, end, &key))) return NULL;
        p = key && key->column >= 0 ? SS(member)(t, &e, key->column, p, end) : SS(skip_value)(t, p, end);
        if (!p || !(p = SS(after_member)(t, p, end, &more))) return NULL;
        if (key) expected = &key->next;
    }
    return SS(finish)(t, &e, p) ? p : NULL;
}

/* Reads events up to the end of the text or, where it is allowed, of the list. */
static SS_TARGET const char *SS(events)(ss_tokenizer *t, const char *p, const char *end, bool last) {
    for (;;) {
        while (p < end && (ss_may_follow[(uint8_t)*p] && *p != '}' && *p != ']')) p++;
        if (p == end) return last ? SS(fail)(t, SS_CUT, p) : p;
        if (*p == ']') return last ? p + 1 : SS(fail)(t, SS_LIST_ENDED, p);
        if (*p != '{') return SS(fail)(t, SS_UNUSUAL, p);
        if (!(p = SS(event)(t, p, end))) return NULL;
    }
}
