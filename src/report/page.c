#include "report/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

/* ---- text ---- */

static bool reserve(dp_page *page, size_t more)
{
    if (page->status != DP_OK)
        return false;
    size_t room = page->room ? page->room : 1 << 16;
    while (room - page->used <= more)
        room *= 2;
    if (room > page->room) {
        page->status = dp_realloc(&page->text, room, 1, "the report", &page->error);
        if (page->status != DP_OK)
            return false;
        page->room = room;
    }
    return true;
}

void dp_page_add(dp_page *page, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    if (length > 0 && reserve(page, (size_t)length)) {
        vsnprintf(page->text + page->used, page->room - page->used, format, again);
        page->used += (size_t)length;
    }
    va_end(again);
    va_end(args);
}

void dp_page_add_text(dp_page *page, const char *text, size_t most)
{
    const char *end = text;
    while (*end && (size_t)(end - text) < most)
        end++;
    bool cut = *end;
    while (cut && end > text && ((unsigned char)*end & 0xC0) == 0x80) /* not within a character */
        end--;
    for (; text < end; text++)
        switch (*text) {
        case '&':
            dp_page_add(page, "&amp;");
            break;
        case '<':
            dp_page_add(page, "&lt;");
            break;
        case '>':
            dp_page_add(page, "&gt;");
            break;
        case '"':
            dp_page_add(page, "&quot;");
            break;
        default:
            dp_page_add(page, "%c", (unsigned char)*text < ' ' || *text == 127 ? ' ' : *text);
        }
    if (cut)
        dp_page_add(page, " …");
}

/* ---- numbers ---- */

static char *unknown(char *buffer)
{
    snprintf(buffer, DP_NUMBER_SIZE, "–");
    return buffer;
}

char *dp_show_loss(double value, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(value))
        return unknown(buffer);
    snprintf(buffer, DP_NUMBER_SIZE,
             fabs(value) < 1000 && (fabs(value) >= 0.001 || value == 0) ? "%.4f" : "%.4g", value);
    return buffer;
}

char *dp_show_percent(double share, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(share))
        return unknown(buffer);
    snprintf(buffer, DP_NUMBER_SIZE, "%.1f %%", 100 * share);
    return buffer;
}

char *dp_show_ms(double ms, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(ms))
        return unknown(buffer);
    snprintf(buffer, DP_NUMBER_SIZE, ms >= 100 ? "%.0f ms" : ms >= 10 ? "%.1f ms" : "%.2f ms", ms);
    return buffer;
}

char *dp_show_seconds(double seconds, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(seconds) || seconds < 0 || seconds > 1e12)
        return unknown(buffer);
    int64_t whole = (int64_t)(seconds + 0.5);
    if (seconds < 60)
        snprintf(buffer, DP_NUMBER_SIZE, "%.1f s", seconds);
    else if (whole < 3600)
        snprintf(buffer, DP_NUMBER_SIZE, "%d min %d s", (int)(whole / 60), (int)(whole % 60));
    else
        snprintf(buffer, DP_NUMBER_SIZE, "%lld h %d min", (long long)(whole / 3600),
                 (int)(whole % 3600 / 60));
    return buffer;
}

char *dp_show_count(double count, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(count) || fabs(count) > 9e15)
        return unknown(buffer);
    return dp_format_count((int64_t)llround(count), buffer, DP_NUMBER_SIZE);
}

char *dp_show_rate(double rate, char buffer[DP_NUMBER_SIZE])
{
    return isnan(rate) || fabs(rate) > 9e15 ? unknown(buffer) : dp_format_rate(rate, buffer, DP_NUMBER_SIZE);
}

char *dp_show_bytes(double bytes, char buffer[DP_NUMBER_SIZE])
{
    if (isnan(bytes) || bytes < 0 || bytes > 1e18)
        return unknown(buffer);
    return dp_format_bytes((uint64_t)bytes, buffer, DP_NUMBER_SIZE);
}

double dp_axis_step(double range, int wanted)
{
    if (!(range > 0) || !isfinite(range))
        return 1;
    double power = pow(10, floor(log10(range / wanted))), ratio = range / wanted / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

/* ---- colours: Okabe and Ito's palette (Color Universal Design, 2008), and patterns for those who see none
 * ---- */

const char dp_wait_fill[] = "url(#waiting)";

const char *dp_phase_fill(dp_phase phase)
{
    static const char *const fills[DP_PHASES] = {
        [DP_PHASE_WAIT] = dp_wait_fill,           [DP_PHASE_SCATTER] = "url(#yellow-lines)",
        [DP_PHASE_BROADCAST] = "url(#sky-lines)", [DP_PHASE_FORWARD] = "#0072b2",
        [DP_PHASE_GATHER] = "url(#purple-lines)", [DP_PHASE_LOSS] = "url(#grey-dots)",
        [DP_PHASE_BACKWARD] = "#e69f00",          [DP_PHASE_REDUCE] = "url(#green-dots)",
        [DP_PHASE_OPTIMIZER] = "#d55e00"};
    return fills[phase];
}

const char *dp_purpose_fill(int purpose)
{
    /* In the order of dp_memory_purpose. */
    static const char *const fills[DP_PURPOSES] = {"#0072b2",
                                                   "#e69f00",
                                                   "url(#vermillion-dots)",
                                                   "#f0e442",
                                                   "url(#green-dots)",
                                                   "url(#sky-lines)",
                                                   "url(#purple-lines)",
                                                   "url(#grey-dots)",
                                                   "url(#yellow-lines)",
                                                   "#cccccc"};
    return fills[purpose];
}

bool dp_fill_is_dark(const char *fill)
{
    return strcmp(fill, "#0072b2") == 0;
}

static void add_pattern(dp_page *page, const char *id, const char *ground, const char *ink, bool dots)
{
    dp_page_add(page,
                "<pattern id=\"%s\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\"%s>"
                "<rect width=\"7\" height=\"7\" fill=\"%s\"/>",
                id, dots ? "" : " patternTransform=\"rotate(45)\"", ground);
    dp_page_add(page,
                dots ? "<circle cx=\"3.5\" cy=\"3.5\" r=\"1.1\" fill=\"%s\"/></pattern>\n"
                     : "<rect width=\"1.6\" height=\"7\" fill=\"%s\"/></pattern>\n",
                ink);
}

static void add_patterns(dp_page *page)
{
    dp_page_add(page, "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\n");
    add_pattern(page, "waiting", "var(--wash)", "var(--faint)", false);
    add_pattern(page, "yellow-lines", "#f0e442", "#b5aa10", false);
    add_pattern(page, "sky-lines", "#56b4e9", "#1f7fb6", false);
    add_pattern(page, "purple-lines", "#cc79a7", "#9c4577", false);
    add_pattern(page, "grey-dots", "#a5a5a5", "#4d4d4d", true);
    add_pattern(page, "green-dots", "#009e73", "#d9f5ec", true);
    add_pattern(page, "vermillion-dots", "#d55e00", "#ffe3d0", true);
    dp_page_add(page, "</defs></svg>\n");
}

/* ---- the frame ---- */

static const char style[] =
    ":root{color-scheme:light "
    "dark;--paper:#fdfdfc;--ink:#1d2329;--muted:#59636e;--faint:#a9b1b9;--line:#e2e5e8;"
    "--wash:#f3f5f6;--train:#0072b2;--valid:#c04f00}\n"
    "@media (prefers-color-scheme:dark){:root{--paper:#14181c;--ink:#e4e8ec;--muted:#a0aab4;--faint:#6a747e;"
    "--line:#2c343b;--wash:#1e242a;--train:#56b4e9;--valid:#f0a030}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe "
    "UI',Roboto,'Helvetica Neue',sans-serif;font-variant-numeric:tabular-nums}\n"
    "main{max-width:58rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}\n"
    "h1{font-size:1.9rem;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0 0 .3rem;"
    "overflow-wrap:anywhere}\n"
    "h2{font-size:1.15rem;font-weight:650;margin:0 0 .2rem}\n"
    "p{margin:.3rem 0}.muted,.note{color:var(--muted)}.note{font-size:.92rem;max-width:46rem}\n"
    "section{margin-top:2.75rem;break-inside:avoid}\n"
    ".verdict{margin-top:1.5rem;padding:.9rem 1.1rem;background:var(--wash);border-left:4px solid "
    "var(--train);border-radius:2px;font-size:1.06rem}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.6rem,1fr));gap:1.1rem "
    "1.25rem;margin:1.7rem 0 0;padding:0}\n"
    ".tiles div{align-self:end}.tiles dt{color:var(--muted);font-size:.86rem}.tiles "
    "dd{margin:0;font-size:1.5rem;"
    "font-weight:600;letter-spacing:-.01em}\n"
    ".plot{display:block;width:calc(100% - 3.4rem);height:240px;margin:.9rem 0 0 3.4rem;overflow:visible}\n"
    ".plot text,.axis text{fill:var(--muted);font-size:12px}.grid{stroke:var(--line);stroke-width:1}\n"
    ".line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:"
    "round}\n"
    ".dots{fill:none;stroke-width:6;vector-effect:non-scaling-stroke;stroke-linecap:round}\n"
    ".band{opacity:.16}\n"
    ".train{stroke:var(--train)}.valid{stroke:var(--valid)}.dashed{stroke-dasharray:7 "
    "4}.band.train{stroke:none;"
    "fill:var(--train)}\n"
    ".keys{display:flex;flex-wrap:wrap;gap:.25rem "
    "1.1rem;margin:.7rem 0 0;padding:0;list-style:none;font-size:.86rem;color:var(--muted)}\n"
    ".keys li{display:flex;align-items:center;gap:.4rem}\n"
    ".rows{display:grid;grid-template-columns:max-content 1fr max-content;gap:.45rem "
    ".9rem;align-items:center;margin-top:.9rem}\n"
    ".row{display:contents}.rows .name{font-weight:550}.rows .value{color:var(--muted);text-align:right}\n"
    ".bar{display:block;width:100%;height:28px;background:var(--wash);border-radius:2px;overflow:hidden}\n"
    ".bar rect{shape-rendering:crispEdges}.bar text{font-size:12px;fill:#111;paint-order:stroke;"
    "stroke:rgba(255,255,255,.75);stroke-width:3px;stroke-linejoin:round}.bar "
    "text.light{fill:#fff;stroke:none}\n"
    ".axis{display:block;width:100%;height:18px;overflow:visible}.plot+.axis{width:calc(100% - "
    "3.4rem);margin-left:3.4rem}\n"
    ".scroll{overflow-x:auto;margin-top:.9rem}\n"
    "table{border-collapse:collapse;width:100%;font-size:.92rem}\n"
    "th,td{padding:.34rem 0 .34rem 1rem;border-bottom:1px solid "
    "var(--line);text-align:right;white-space:nowrap}\n"
    "th{color:var(--muted);font-weight:500}th:first-child,td:first-child{text-align:left;padding-left:0}#"
    "settings td{text-align:left;white-space:normal}\n"
    "code{font:.86rem/1.5 "
    "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;display:block;background:var(--wash);"
    "padding:.7rem .9rem;border-radius:2px;overflow-wrap:anywhere;white-space:pre-wrap}\n"
    "footer{margin-top:3rem;padding-top:1rem;border-top:1px solid "
    "var(--line);color:var(--muted);font-size:.86rem}\n"
    ".defs{position:absolute}\n"
    "@media (max-width:36rem){main{padding:1.5rem 1rem "
    "3rem}h1{font-size:1.5rem}.rows{display:block}.row{"
    "display:grid;grid-template-columns:1fr max-content;gap:.1rem .9rem;margin-bottom:.6rem}.row "
    ".drawn{grid-row:2;"
    "grid-column:1/-1}.plot{height:200px}.bar .wide{display:none}.tiles{grid-template-columns:1fr 1fr}.tiles "
    "dd{font-size:1.25rem}}\n"
    "@media "
    "print{:root{color-scheme:light;--paper:#fff;--ink:#000;--muted:#444;--faint:#999;--line:#ccc;--wash:#"
    "f3f3f3;"
    "--train:#0072b2;--valid:#c04f00}body{font-size:11pt}main{max-width:none;padding:0}section{margin-top:1."
    "6rem}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}.scroll{overflow:visible}table{font-size:"
    "8pt}th{white-space:normal}"
    "td,th{padding-left:.4rem}}\n";

void dp_page_begin(dp_page *page, const char *title)
{
    dp_page_add(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                      /* Whatever a log holds, this page fetches and runs nothing. */
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                      "'unsafe-inline'; img-src data:\">\n"
                      "<link rel=\"icon\" href=\"data:,\">\n<title>");
    dp_page_add_text(page, title, 200);
    dp_page_add(page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n", style);
    add_patterns(page);
    dp_page_add(page, "<main>\n");
}

void dp_page_end(dp_page *page)
{
    dp_page_add(page, "</main>\n</body>\n</html>\n");
}

void dp_page_begin_section(dp_page *page, const char *id, const char *heading, const char *note)
{
    dp_page_add(page, "<section id=\"%s\">\n<h2>%s</h2>\n", id, heading);
    if (note)
        dp_page_add(page, "<p class=\"note\">%s</p>\n", note);
}

void dp_page_end_section(dp_page *page)
{
    dp_page_add(page, "</section>\n");
}

void dp_page_add_key(dp_page *page, const char *fill, const char *text)
{
    dp_page_add(
        page,
        "<li><svg width=\"16\" height=\"14\" aria-hidden=\"true\"><rect width=\"16\" height=\"14\" rx=\"2\" "
        "fill=\"%s\"/></svg>",
        fill);
    dp_page_add_text(page, text, 60);
    dp_page_add(page, "</li>\n");
}

/* A character needs some 2 % of a bar's length on a phone, and half of that on a screen. */
void dp_page_add_part(dp_page *page, double begin, double end, const char *fill, const char *text,
                      const char *title)
{
    dp_page_add(page, "<rect x=\"%.3f%%\" width=\"%.3f%%\" height=\"28\" fill=\"%s\"><title>", 100 * begin,
                100 * (end - begin), fill);
    dp_page_add_text(page, title, 120);
    dp_page_add(page, "</title></rect>");
    double length = end - begin, room = text ? 0.01 * (double)strlen(text) + 0.01 : 2;
    if (length <= room)
        return;
    dp_page_add(page, "<text x=\"%.3f%%\" y=\"18\" text-anchor=\"middle\" class=\"%s%s\">",
                50 * (begin + end), dp_fill_is_dark(fill) ? "light" : "dark",
                length > 2 * room ? "" : " wide");
    dp_page_add_text(page, text, 60);
    dp_page_add(page, "</text>");
}

void dp_page_add_cell(dp_page *page, const char *name, double value, const char *text)
{
    if (isnan(value))
        dp_page_add(page, "<td>–</td>");
    else
        dp_page_add(page, "<td data-%s=\"%.10g\">%s</td>", name, value, text);
}
