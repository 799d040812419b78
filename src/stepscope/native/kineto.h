/* Kineto JSON → columns. Plain C11, no Python API: the caller (ctypes) holds no lock while it runs.
 *
 * A tokenizer owns growing columns and a pool of distinct texts. It is fed chunks of whole events and appends rows. Text
 * is read within [text, text + length) only, nothing is assumed about what lies behind. What it does not know, or what
 * is not as Kineto writes it, ends the chunk with an error; the rows of that chunk are then taken back, and the caller
 * reads it another way.
 */
#ifndef STEPSCOPE_KINETO_H
#define STEPSCOPE_KINETO_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define SS_EXPORT __declspec(dllexport)
#else
#define SS_EXPORT __attribute__((visibility("default")))
#endif

/* Value of an integer column if the event has none. */
#define SS_ABSENT INT64_MIN

enum { SS_CLASSES = 16, SS_MAX_FIELDS = 64, SS_MAX_KEYS = 128, SS_MAX_DEPTH = 512 };

/* What ends a chunk; ss_tokenize returns the negative of one. */
enum ss_error {
    SS_CUT = 1,        /* the text ends inside an event */
    SS_NOT_JSON = 2,   /* a character that JSON does not allow */
    SS_UNUSUAL = 3,    /* JSON, but not as Kineto writes it */
    SS_TOO_DEEP = 4,   /* nested deeper than SS_MAX_DEPTH */
    SS_NO_MEMORY = 5,
    SS_LIST_ENDED = 6, /* the list of events ended where it should go on */
};

enum ss_type { SS_INTEGER = 0, SS_REAL = 1, SS_TEXT = 2, SS_UNSIGNED = 3 };

/* Columns that every event has, in this order, see ss_base. */
enum ss_base_column {
    SS_PHASE, SS_CLASS, SS_CATEGORY, SS_NAME, SS_PROCESS, SS_THREAD, SS_ID, SS_TS, SS_DUR, SS_BASE_COLUMNS
};

typedef struct ss_tokenizer ss_tokenizer;

SS_EXPORT ss_tokenizer *ss_new(void);
SS_EXPORT void ss_free(ss_tokenizer *tokenizer);

/* The description of the events, before the first chunk. Return 0, or a negative error. */
SS_EXPORT int ss_add_category(ss_tokenizer *tokenizer, const char *text, int32_t length, int32_t class_number);
/* Names of arguments come with their quotes. */
SS_EXPORT int ss_add_key(ss_tokenizer *tokenizer, int32_t class_number, const char *text, int32_t length, int32_t column,
                         int32_t type, int32_t group);
SS_EXPORT int ss_keep_whole(ss_tokenizer *tokenizer, int32_t class_number, int32_t column);
SS_EXPORT int ss_special(ss_tokenizer *tokenizer, int32_t none, int32_t memory, int32_t other, int32_t required_column,
                         int32_t required_class);
/* Events as Ascend's tools write them: times may be texts of µs, identifiers are numbers or texts, of which the column has
 * the code; counters and metadata are of a class of their own. */
SS_EXPORT int ss_quoted(ss_tokenizer *tokenizer, int32_t samples);

/* Append the events of a chunk. `last`: the chunk may hold the end of the list and what follows it.
 * Returns the bytes read, up to and with the end of the list; or a negative error, with its offset in ss_position. */
SS_EXPORT int64_t ss_tokenize(ss_tokenizer *tokenizer, const char *text, int64_t length, int32_t last);
SS_EXPORT int64_t ss_position(const ss_tokenizer *tokenizer);

/* What has been read. Pointers are valid until the next chunk. */
SS_EXPORT int64_t ss_rows(const ss_tokenizer *tokenizer);
SS_EXPORT const void *ss_base(const ss_tokenizer *tokenizer, int32_t column);
SS_EXPORT int64_t ss_class_rows(const ss_tokenizer *tokenizer, int32_t class_number);
SS_EXPORT const void *ss_class_column(const ss_tokenizer *tokenizer, int32_t class_number, int32_t column);
SS_EXPORT int64_t ss_texts(const ss_tokenizer *tokenizer);
SS_EXPORT const char *ss_arena(const ss_tokenizer *tokenizer);
SS_EXPORT const int64_t *ss_ends(const ss_tokenizer *tokenizer);

/* How spans lie in each other, see stepscope/read/common/nesting.py. Return 0, or a negative error. */
SS_EXPORT int ss_nest(int64_t count, const int32_t *track, const int64_t *ts, const int64_t *dur, int64_t *order,
                      int64_t *parent, int32_t *depth, uint8_t *crossing);
SS_EXPORT void ss_nearest(int64_t count, const int64_t *parent, const uint8_t *chosen, int64_t *result);
SS_EXPORT void ss_inherit(int64_t count, const int64_t *parent, const int8_t *own, int8_t *result);

#endif
