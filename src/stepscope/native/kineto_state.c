/* A tokenizer's memory: made, described, grown, looked at and freed. */
#if defined(__linux__)
#define _GNU_SOURCE
#endif
#include "kineto_state.h"

#include <locale.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__APPLE__)
#include <xlocale.h>
#endif

enum { FIRST_ROWS = 4096, FIRST_SLOTS = 4096, FIRST_ARENA = 1 << 16, LONGEST_NUMBER = 400, LARGE_PAGE = 2 << 20 };

static const size_t base_size[SS_BASE_COLUMNS] = {1, 1, 4, 4, 4, 4, 8, 8, 8};

void ss_expect_use(void *data, size_t size) {
#if defined(MADV_HUGEPAGE)
    uintptr_t begin = ((uintptr_t)data + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uintptr_t end = ((uintptr_t)data + size) / LARGE_PAGE * LARGE_PAGE;
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)size;
#endif
}

static size_t size_of(int32_t type) { return type == SS_TEXT ? 4 : 8; }

static int grow(void **data, int64_t count, size_t size) {
    if ((uint64_t)count > SIZE_MAX / size) return -1;
    void *larger = realloc(*data, (size_t)count * size);
    if (!larger) return -1;
    ss_expect_use(larger, (size_t)count * size);
    *data = larger;
    return 0;
}

int ss_grow_rows(ss_tokenizer *t) {
    int64_t capacity = t->capacity ? 2 * t->capacity : FIRST_ROWS;
    for (int i = 0; i < SS_BASE_COLUMNS; i++)
        if (grow(&t->base[i], capacity, base_size[i])) return -1;
    t->capacity = capacity;
    return 0;
}

int ss_grow_class(ss_class *rows) {
    int64_t capacity = rows->capacity ? 2 * rows->capacity : FIRST_ROWS;
    if (grow((void **)&rows->event, capacity, 8)) return -1;
    for (int32_t i = 0; i < rows->columns; i++)
        if (grow(&rows->column[i].data, capacity, size_of(rows->column[i].type))) return -1;
    ss_clear_rows(rows, rows->capacity, capacity);
    rows->capacity = capacity;
    return 0;
}

/* Rows that are not used yet hold no value in any column, so that a new row needs no work. */
void ss_clear_rows(ss_class *rows, int64_t from, int64_t to) {
    if (from == to) return;
    for (int32_t i = 0; i < rows->columns; i++) {
        ss_column *column = &rows->column[i];
        if (column->type == SS_TEXT) {
            memset((int32_t *)column->data + from, 0xFF, (size_t)(to - from) * 4);
        } else if (column->type == SS_REAL) {
            for (int64_t row = from; row < to; row++) ((double *)column->data)[row] = (double)__builtin_nanf("");
        } else {
            for (int64_t row = from; row < to; row++) ((int64_t *)column->data)[row] = SS_ABSENT;
        }
    }
}

int ss_pool_grow_slots(ss_pool *pool) {
    int64_t slots = pool->slots ? 2 * pool->slots : FIRST_SLOTS;
    uint64_t *larger = calloc((size_t)slots, sizeof *larger);
    if (!larger) return -1;
    for (int64_t i = 0; i < pool->slots; i++) {
        uint64_t slot = pool->slot[i], j = (slot >> 32) & (uint64_t)(slots - 1);
        if (!slot) continue;
        while (larger[j]) j = (j + 1) & (uint64_t)(slots - 1);
        larger[j] = slot;
    }
    free(pool->slot);
    pool->slot = larger;
    pool->slots = slots;
    return 0;
}

int32_t ss_pool_append(ss_pool *pool, const char *text, int64_t length, uint64_t *slot, uint32_t hash) {
    if (pool->count >= INT32_MAX - 1) return -SS_NO_MEMORY;
    if (pool->count == pool->capacity) {
        int64_t capacity = pool->capacity ? 2 * pool->capacity : FIRST_ROWS;
        if (grow((void **)&pool->end, capacity, 8) || grow((void **)&pool->class_number, capacity, 1))
            return -SS_NO_MEMORY;
        pool->capacity = capacity;
    }
    if (pool->arena_size + length > pool->arena_capacity) {
        int64_t capacity = pool->arena_capacity ? 2 * pool->arena_capacity : FIRST_ARENA;
        while (capacity < pool->arena_size + length) capacity *= 2;
        if (grow((void **)&pool->arena, capacity, 1)) return -SS_NO_MEMORY;
        pool->arena_capacity = capacity;
    }
    memcpy(pool->arena + pool->arena_size, text, (size_t)length);
    pool->arena_size += length;
    pool->end[pool->count] = pool->arena_size;
    pool->class_number[pool->count] = -1;
    *slot = (uint64_t)hash << 32 | (uint64_t)(pool->count + 1);
    return (int32_t)pool->count++;
}

/* Returns the index of a name, given with its quotes; -1: it is new, and the table is full. */
int32_t ss_learn(ss_keys *keys, const char *text, int64_t length) {
    if (length > INT32_MAX) return -1;
    uint32_t mask = 2 * SS_MAX_KEYS - 1, i = ss_hash(text, length) & mask;
    for (; keys->slot[i]; i = (i + 1) & mask) {
        ss_key *key = &keys->key[keys->slot[i] - 1];
        if (key->length == length && !memcmp(key->text, text, (size_t)length)) return keys->slot[i] - 1;
    }
    if (keys->count == SS_MAX_KEYS) return -1;
    char *copy = malloc((size_t)length + 1);
    if (!copy) return -1;
    memcpy(copy, text, (size_t)length);
    keys->key[keys->count] = (ss_key){.text = copy, .length = (int32_t)length, .column = -1, .last = -1, .next = {{-1, -1}}};
    keys->slot[i] = (uint8_t)++keys->count;
    return keys->count - 1;
}

int32_t ss_look_up_category(ss_tokenizer *t, int32_t code) {
    int64_t length;
    const char *text = ss_text(&t->pool, code, &length);
    int32_t found = t->other;
    for (int32_t i = 0; i < t->categories; i++) {
        const ss_category *category = &t->category[i];
        /* The pool holds JSON as written: the name lies between quotes. */
        if (category->length == length - 2 && !memcmp(category->text, text + 1, (size_t)category->length))
            found = category->class_number;
    }
    t->pool.class_number[code] = (int8_t)found;
    return found;
}

#if defined(LC_ALL_MASK)
static locale_t c_locale(void) {
    static locale_t made;
    if (!made) made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return made;
}
#endif

bool ss_slow_real(const char *p, const char *end, double *result) {
    char copy[LONGEST_NUMBER + 1];
    if (end - p > LONGEST_NUMBER) return false;
    /* Only what JSON has: strtod also takes names, hexadecimal digits and white space. */
    for (const char *c = p; c < end; c++)
        if (!strchr("0123456789+-.eE", *c) || !*c) return false;
    memcpy(copy, p, (size_t)(end - p));
    copy[end - p] = 0;
    char *behind = copy;
#if defined(LC_ALL_MASK)
    if (!c_locale()) return false;
    *result = strtod_l(copy, &behind, c_locale());
#endif
    return behind > copy && !*behind && *result - *result == 0;
}

/* Says where the values of a name go. */
static int add_name(ss_keys *keys, const char *text, int64_t length, ss_key where) {
    int32_t place = ss_learn(keys, text, length);
    if (place < 0) return -1;
    ss_key *key = &keys->key[place];
    key->column = where.column;
    key->type = where.type;
    key->group = where.group;
    return 0;
}

/* Makes names that have not been seen yet. */
static void forget(ss_keys *keys) {
    keys->first = (ss_next){{-1, -1}};
    keys->unknown = (ss_key){.column = -1, .last = -1, .next = {{-1, -1}}};
}

static void free_names(ss_keys *keys) {
    for (int32_t i = 0; i < keys->count; i++) free((char *)keys->key[i].text);
}

ss_tokenizer *ss_new(void) {
    ss_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    for (int i = 0; i < SS_CLASSES; i++) {
        forget(&t->keys[i]);
        t->classes[i].whole = -1;
    }
    for (int i = 0; i < SS_BASE_COLUMNS; i++) t->last[i] = -1;
    forget(&t->members);
    static const char *const members[] = {"\"ph\"", NULL, "\"cat\"", "\"name\"", "\"pid\"", "\"tid\"", "\"id\"", "\"ts\"", "\"dur\"", "\"args\""};
    for (int32_t i = 0; i <= SS_ARGS; i++)
        if (members[i] && add_name(&t->members, members[i], (int64_t)strlen(members[i]), (ss_key){.column = i})) goto failed;
    t->memory_name = ss_intern(&t->pool, "\"[memory]\"", 10);
    if (t->memory_name >= 0 && !ss_grow_rows(t)) return t;
failed:
    ss_free(t);
    return NULL;
}

void ss_free(ss_tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < SS_BASE_COLUMNS; i++) free(t->base[i]);
    for (int i = 0; i < SS_CLASSES; i++) {
        free(t->classes[i].event);
        for (int32_t j = 0; j < t->classes[i].columns; j++) free(t->classes[i].column[j].data);
        free_names(&t->keys[i]);
    }
    free_names(&t->members);
    for (int32_t i = 0; i < t->categories; i++) free(t->category[i].text);
    free(t->pool.arena);
    free(t->pool.end);
    free(t->pool.class_number);
    free(t->pool.slot);
    free(t);
}

int ss_add_category(ss_tokenizer *t, const char *text, int32_t length, int32_t class_number) {
    if (t->categories == SS_MAX_KEYS || class_number < 0 || class_number >= SS_CLASSES) return -SS_UNUSUAL;
    char *copy = malloc((size_t)length + 1);
    if (!copy) return -SS_NO_MEMORY;
    memcpy(copy, text, (size_t)length);
    t->category[t->categories++] = (ss_category){copy, length, class_number};
    return 0;
}

static int add_column(ss_class *rows, int32_t column, int32_t type) {
    if (column < 0 || column >= SS_MAX_FIELDS || type < SS_INTEGER || type > SS_UNSIGNED) return -SS_UNUSUAL;
    /* Columns are announced in order; a further spelling names one that is there. */
    if (column > rows->columns || (column < rows->columns && rows->column[column].type != type)) return -SS_UNUSUAL;
    if (column == rows->columns) rows->column[rows->columns++].type = type;
    return 0;
}

int ss_add_key(ss_tokenizer *t, int32_t class_number, const char *text, int32_t length, int32_t column, int32_t type,
               int32_t group) {
    if (class_number < 0 || class_number >= SS_CLASSES || group < 0 || group >= SS_CLASSES) return -SS_UNUSUAL;
    if (add_column(&t->classes[group], column, type)) return -SS_UNUSUAL;
    ss_key where = {.column = column, .type = type, .group = group};
    return add_name(&t->keys[class_number], text, length, where) ? -SS_NO_MEMORY : 0;
}

int ss_keep_whole(ss_tokenizer *t, int32_t class_number, int32_t column) {
    if (class_number < 0 || class_number >= SS_CLASSES) return -SS_UNUSUAL;
    t->classes[class_number].whole = column;
    return add_column(&t->classes[class_number], column, SS_TEXT);
}

int ss_special(ss_tokenizer *t, int32_t none, int32_t memory, int32_t other, int32_t required_column,
               int32_t required_class) {
    t->none = none;
    t->memory = memory;
    t->other = t->samples = other;
    t->required_column = required_column;
    t->required_class = required_class;
    return 0;
}

int ss_quoted(ss_tokenizer *t, int32_t samples) {
    if (samples < 0 || samples >= SS_CLASSES) return -SS_UNUSUAL;
    t->samples = samples;
    t->quoted = true;
    return 0;
}

int64_t ss_position(const ss_tokenizer *t) { return t->position; }
int64_t ss_rows(const ss_tokenizer *t) { return t->rows; }
const void *ss_base(const ss_tokenizer *t, int32_t column) { return t->base[column]; }
int64_t ss_class_rows(const ss_tokenizer *t, int32_t number) { return t->classes[number].rows; }
int64_t ss_texts(const ss_tokenizer *t) { return t->pool.count; }
const char *ss_arena(const ss_tokenizer *t) { return t->pool.arena; }
const int64_t *ss_ends(const ss_tokenizer *t) { return t->pool.end; }

/* Column -1 is the event's row. */
const void *ss_class_column(const ss_tokenizer *t, int32_t number, int32_t column) {
    return column < 0 ? (const void *)t->classes[number].event : t->classes[number].column[column].data;
}
