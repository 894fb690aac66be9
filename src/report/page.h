/* The pieces that a page is made of. */
#ifndef DP_REPORT_PAGE_H
#define DP_REPORT_PAGE_H

#include <stddef.h>

#include "base/error.h"
#include "report/run.h"

/* Text that grows. The first failure stays, and what comes after it does nothing. */
typedef struct dp_page {
    char *text;
    size_t used, room;
    dp_status status;
    dp_error error;
} dp_page;

/* As printf: for what needs no escaping. */
__attribute__((format(printf, 2, 3))) void dp_page_add(dp_page *page, const char *format, ...);
/* Anything from a log: escaped, control characters as spaces, cut at `most` bytes. */
void dp_page_add_text(dp_page *page, const char *text, size_t most);

/* Head, style, patterns; and the end. */
void dp_page_begin(dp_page *page, const char *title);
void dp_page_end(dp_page *page);

/* Opens and closes a section; `note` stands under the heading (HTML; NULL: nothing). */
void dp_page_begin_section(dp_page *page, const char *id, const char *heading, const char *note);
void dp_page_end_section(dp_page *page);

/* The value of a fill attribute: colour and pattern of a phase, of a purpose of memory, of waiting. */
const char *dp_phase_fill(dp_phase phase);
const char *dp_purpose_fill(int purpose);
extern const char dp_wait_fill[];
/* Is the fill dark, so that text on it is to be white? */
bool dp_fill_is_dark(const char *fill);
/* One entry of a legend. */
void dp_page_add_key(dp_page *page, const char *fill, const char *text);

/* A part of a bar, from begin to end (shares of its length), with its text where that fits. `title`: what it
 * says when pointed at. */
void dp_page_add_part(dp_page *page, double begin, double end, const char *fill, const char *text,
                      const char *title);

/* A table cell of a number: the exact value for programs, the text for people ("-" where it is NaN). */
void dp_page_add_cell(dp_page *page, const char *name, double value, const char *text);

/* Numbers as people read them; they return the buffer. */
enum { DP_NUMBER_SIZE = 48 };
char *dp_show_loss(double value, char buffer[DP_NUMBER_SIZE]);
char *dp_show_percent(double share, char buffer[DP_NUMBER_SIZE]);
char *dp_show_ms(double ms, char buffer[DP_NUMBER_SIZE]);
char *dp_show_seconds(double seconds, char buffer[DP_NUMBER_SIZE]);
char *dp_show_count(double count, char buffer[DP_NUMBER_SIZE]);
char *dp_show_rate(double rate, char buffer[DP_NUMBER_SIZE]);
char *dp_show_bytes(double bytes, char buffer[DP_NUMBER_SIZE]);

/* A step between marks of an axis such that about `wanted` of them fit: 1, 2 or 5 times a power of ten. */
double dp_axis_step(double range, int wanted);

/* ---- sections ---- */

void dp_page_add_curves(dp_page *page, const dp_run *run);
void dp_page_add_step(dp_page *page, const dp_run *run);    /* the timeline, and where the time goes */
void dp_page_add_devices(dp_page *page, const dp_run *run); /* memory, busy share, split */

#endif
