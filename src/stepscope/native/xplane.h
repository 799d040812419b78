/* Events of an XPlane file → columns: the fast twin of stepscope/read/xplane/xplane_events.py, where the format is explained.
 *
 * Bytes are read within [content, content + end) only. A varint has at most ten bytes; bytes that form no field end their message.
 */
#ifndef STEPSCOPE_XPLANE_H
#define STEPSCOPE_XPLANE_H

#include "kineto.h"

/* What a line says of itself; offsets are those of its last field of that number, 0 and 0 if it has none. */
typedef struct {
    int64_t id, timestamp;             /* ns */
    int64_t name, name_end;            /* offsets of the name */
    int64_t display, display_end;      /* offsets of the name to show */
    int64_t events, stats;             /* events walked over, and their stats */
    int64_t broken;                    /* 1: something is not a field, or the line ends in the middle of one */
} ss_xplane_line_head;

/* Columns to fill: one entry per event, one per stat. */
typedef struct {
    int64_t *metadata, *offset, *duration; /* of events: id of its metadata, ps, ps */
    uint8_t *state;                        /* bit 0: damaged; bit 1: an aggregate, without a time of its own */
    int32_t *owner;                        /* of stats: number of the event */
    int64_t *key, *value, *end;            /* id of its metadata; value, or offsets of a text */
    uint8_t *field;                        /* number of the field that the value stood in, 0: none */
} ss_xplane_columns;

/* Walks the fields of a line from `at`, behind at most `most` events. Returns the offset behind. */
SS_EXPORT int64_t ss_xplane_line(const uint8_t *content, int64_t at, int64_t end, int64_t most, ss_xplane_line_head *head);

/* Fills the columns with the events between two offsets that ss_xplane_line returned. */
SS_EXPORT void ss_xplane_events(const uint8_t *content, int64_t at, int64_t end, const ss_xplane_columns *columns);

#endif
