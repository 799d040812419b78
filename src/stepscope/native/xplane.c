/* Events of an XPlane file → columns, see xplane.h. */
#include "xplane.h"

#include <stdbool.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BLOCK = 2, FIXED32 = 5 };
enum { DAMAGED = 1, AGGREGATE = 2 };

typedef struct {
    int64_t number, wire;
    uint64_t value;      /* of varints and fixed words; length of blocks */
    int64_t start, stop; /* offsets of the value */
} field;

/* Returns the offset behind the varint, 0 if it does not end before `end` or within 64 bits. */
static inline int64_t varint(const uint8_t *content, int64_t at, int64_t end, uint64_t *value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint8_t byte = content[at++];
        result |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = result;
            return at;
        }
    }
    return 0;
}

/* Reads the field at an offset; false unless it is whole. */
static inline bool next(const uint8_t *content, int64_t at, int64_t end, field *f) {
    uint64_t key;
    at = varint(content, at, end, &key);
    if (!at) return false;
    f->number = (int64_t)(key >> 3);
    f->wire = (int64_t)(key & 7);
    if (f->number <= 0 || f->number >= (int64_t)1 << 29) return false;
    f->value = 0;
    if (f->wire == VARINT || f->wire == BLOCK) {
        at = varint(content, at, end, &f->value);
        if (!at) return false;
    }
    f->start = f->stop = at;
    if (f->wire == VARINT) return true;
    uint64_t width = f->wire == BLOCK ? f->value : f->wire == FIXED64 ? 8 : f->wire == FIXED32 ? 4 : UINT64_MAX;
    if (width > (uint64_t)(end - at)) return false;
    f->stop = at + (int64_t)width;
    if (f->wire != BLOCK)
        for (uint64_t i = 0; i < width; i++) f->value |= (uint64_t)content[at + (int64_t)i] << (8 * i);
    return true;
}

static inline bool is(const field *f, int64_t number, int64_t wire) { return f->number == number && f->wire == wire; }

static int64_t count_stats(const uint8_t *content, int64_t at, int64_t end) {
    field f;
    int64_t count = 0;
    for (; at < end && next(content, at, end, &f); at = f.stop) count += is(&f, 4, BLOCK);
    return count;
}

int64_t ss_xplane_line(const uint8_t *content, int64_t at, int64_t end, int64_t most, ss_xplane_line_head *head) {
    field f;
    for (; at < end; at = f.stop) {
        if (!next(content, at, end, &f)) {
            head->broken = 1;
            return end;
        }
        if (is(&f, 4, BLOCK)) {
            if (head->events == most) return at;
            head->events++;
            /* A walk over all events only looks at the line itself. */
            if (most != INT64_MAX) head->stats += count_stats(content, f.start, f.stop);
        } else if (is(&f, 1, VARINT)) {
            head->id = (int64_t)f.value;
        } else if (is(&f, 3, VARINT)) {
            head->timestamp = (int64_t)f.value;
        } else if (is(&f, 2, BLOCK)) {
            head->name = f.start, head->name_end = f.stop;
        } else if (is(&f, 11, BLOCK)) {
            head->display = f.start, head->display_end = f.stop;
        }
    }
    return at;
}

/* Which wire format the values of a stat have, by number of their field. */
static const int8_t WIRE[9] = {-1, -1, FIXED64, VARINT, VARINT, BLOCK, BLOCK, VARINT, BLOCK};

/* Reads a stat into row `row`; false if it is damaged. */
static inline bool read_stat(const uint8_t *content, int64_t at, int64_t end, const ss_xplane_columns *c, int64_t row) {
    field f;
    int64_t key = 0, value = 0, behind = 0;
    uint8_t number = 0;
    for (; at < end; at = f.stop) {
        if (!next(content, at, end, &f)) return false;
        if (is(&f, 1, VARINT)) {
            key = (int64_t)f.value;
        } else if (f.number >= 2 && f.number <= 8 && f.wire == WIRE[f.number]) {
            number = (uint8_t)f.number;
            value = f.wire == BLOCK ? f.start : (int64_t)f.value;
            behind = f.wire == BLOCK ? f.stop : 0;
        }
    }
    c->key[row] = key, c->value[row] = value, c->end[row] = behind, c->field[row] = number;
    return true;
}

/* Reads an event into row `row` and its stats into rows from `stat`; returns the row behind its last stat. */
static inline int64_t read_event(const uint8_t *content, int64_t at, int64_t end, const ss_xplane_columns *c, int64_t row,
                                 int64_t stat) {
    field f;
    int64_t metadata = 0, offset = 0, duration = 0;
    uint8_t state = 0;
    for (; at < end; at = f.stop) {
        if (!next(content, at, end, &f)) {
            state |= DAMAGED;
            break;
        }
        if (is(&f, 4, BLOCK)) {
            if (read_stat(content, f.start, f.stop, c, stat)) {
                c->owner[stat++] = (int32_t)row;
            } else {
                state |= DAMAGED;
                c->key[stat] = c->value[stat] = c->end[stat] = 0, c->field[stat] = 0;
                c->owner[stat++] = (int32_t)row;
            }
        } else if (is(&f, 1, VARINT)) {
            metadata = (int64_t)f.value;
        } else if (is(&f, 2, VARINT)) {
            offset = (int64_t)f.value, state &= (uint8_t)~AGGREGATE;
        } else if (is(&f, 3, VARINT)) {
            duration = (int64_t)f.value;
        } else if (is(&f, 5, VARINT)) {
            state |= AGGREGATE;
        }
    }
    c->metadata[row] = metadata, c->offset[row] = offset, c->duration[row] = duration, c->state[row] = state;
    return stat;
}

void ss_xplane_events(const uint8_t *content, int64_t at, int64_t end, const ss_xplane_columns *columns) {
    field f;
    int64_t row = 0, stat = 0;
    for (; at < end && next(content, at, end, &f); at = f.stop)
        if (is(&f, 4, BLOCK)) stat = read_event(content, f.start, f.stop, columns, row++, stat);
}
