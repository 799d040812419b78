/* Feeds the tokenizer damaged text, each in memory of exactly its size, so that AddressSanitizer sees every byte read too far.
 *
 *     fuzz DESCRIPTION MUTATIONS TEXT...
 *
 * Texts are chunks of events. Each is read at every length up to 6,000 bytes, and MUTATIONS times with a few bytes changed, put
 * in, taken out or moved. What was read is summed up, so that every column is looked at. */
#include "kineto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u, sum;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int columns[SS_CLASSES];

static void describe(ss_tokenizer *t, const char *path) {
    char word[256];
    int kind, a, b, c, d, e;
    FILE *file = fopen(path, "r");
    if (!file) exit(2);
    while (fscanf(file, " %d %d %d %d %d %d %255[^\n]", &kind, &a, &b, &c, &d, &e, word) == 7) {
        int length = (int)strlen(word), failed = 0;
        if (kind == 0) failed = ss_special(t, a, b, c, d, e);
        if (kind == 1) failed = ss_add_category(t, word, length, a);
        if (kind == 2) failed = ss_add_key(t, a, word, length, b, c, d);
        if (kind == 3) failed = ss_keep_whole(t, a, b);
        if (kind == 4) columns[a] = b;
        if (failed) exit(3);
    }
    fclose(file);
}

/* Looks at everything that was read; text columns are four bytes wide, so only whole words of them are. */
static void look(ss_tokenizer *t) {
    static const int width[SS_BASE_COLUMNS] = {1, 1, 4, 4, 4, 4, 8, 8, 8};
    for (int i = 0; i < SS_BASE_COLUMNS; i++)
        for (int64_t j = 0; j < ss_rows(t) * width[i]; j++) sum += ((const uint8_t *)ss_base(t, i))[j];
    for (int c = 0; c < SS_CLASSES; c++)
        for (int i = -1; i < columns[c]; i++)
            for (int64_t j = 0; j < ss_class_rows(t, c) * 4; j++) sum += ((const uint8_t *)ss_class_column(t, c, i))[j];
    int64_t texts = ss_texts(t), size = texts ? ss_ends(t)[texts - 1] : 0;
    for (int64_t j = 0; j < size; j++) sum += (uint8_t)ss_arena(t)[j];
}

static void feed(const char *description, const char *text, int64_t length) {
    ss_tokenizer *t = ss_new();
    if (!t) exit(4);
    describe(t, description);
    char *exact = malloc((size_t)length + !length);
    memcpy(exact, text, (size_t)length);
    for (int last = 0; last < 2; last++) {
        int64_t rows = ss_rows(t), read = ss_tokenize(t, exact, length, last);
        if (read > length || (read < 0 && (ss_rows(t) != rows || ss_position(t) < 0 || ss_position(t) > length))) abort();
    }
    free(exact);
    look(t);
    ss_free(t);
}

static int64_t mutate(char *text, int64_t length, int64_t room) {
    static const char marks[] = "{}[]\",:\\0123456789.eE-+ntfu \n\0\xff\x80";
    for (int times = 1 + (int)(next() % 4); times; times--) {
        int64_t at = length ? (int64_t)(next() % (uint64_t)length) : 0, many = 1 + (int64_t)(next() % 40);
        char byte = next() % 2 ? marks[next() % (sizeof marks - 1)] : (char)next();
        switch (next() % 5) {
        case 0:
            if (length) text[at] ^= (char)(1 << next() % 8);
            break;
        case 1:
            if (length) text[at] = byte;
            break;
        case 2:
            if (length == room) break;
            memmove(text + at + 1, text + at, (size_t)(length++ - at));
            text[at] = byte;
            break;
        case 3:
            if (at + many > length) break;
            memmove(text + at, text + at + many, (size_t)((length -= many) - at));
            break;
        default:
            if (at + many > length) break;
            memmove(text + at, text + next() % (uint64_t)(length - many + 1), (size_t)many);
        }
    }
    return length;
}

static void nest(void) {
    enum { COUNT = 500 };
    static int32_t track[COUNT], depth[COUNT];
    static int64_t ts[COUNT], dur[COUNT], order[COUNT], parent[COUNT], nearest[COUNT];
    static int8_t own[COUNT], result[COUNT];
    static uint8_t crossing[COUNT];
    for (int i = 0; i < COUNT; i++) {
        track[i] = (int32_t)(next() % 5);
        ts[i] = (int64_t)(next() % 300);
        dur[i] = (int64_t)(next() % 50);
        own[i] = (int8_t)((int)(next() % 3) - 1);
    }
    ts[0] = INT64_MIN, dur[1] = INT64_MAX, ts[1] = INT64_MAX;
    if (ss_nest(COUNT, track, ts, dur, order, parent, depth, crossing)) abort();
    ss_inherit(COUNT, parent, own, result);
    ss_nearest(COUNT, parent, crossing, nearest);
    for (int i = 0; i < COUNT; i++) sum += (uint64_t)(order[i] + parent[i] + depth[i] + crossing[i] + result[i] + nearest[i]);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    for (int i = 3; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) return 2;
        static char text[1 << 20], changed[(1 << 20) + 64];
        int64_t size = (int64_t)fread(text, 1, sizeof text, file);
        fclose(file);
        for (int64_t length = 0; length <= size && length <= 6000; length++) feed(argv[1], text, length);
        for (int64_t times = atoi(argv[2]); times; times--) {
            memcpy(changed, text, (size_t)size);
            feed(argv[1], changed, mutate(changed, size, (int64_t)sizeof changed));
        }
    }
    for (int times = 0; times < 50; times++) nest();
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
