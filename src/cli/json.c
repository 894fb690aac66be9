/* What several commands say as JSON. */
#include "cli/cli.h"

json_t *cli_phases_json(const double ms[DP_PHASES])
{
    json_t *object = json_object();
    for (int p = 0; object && p < DP_PHASES; p++)
        if (json_object_set_new(object, dp_phase_name((dp_phase)p), json_real(ms[p])) != 0) {
            json_decref(object);
            return NULL;
        }
    return object;
}

json_t *cli_memory_json(const dp_device_report *r)
{
    json_t *object = json_object();
    for (int p = 0; object && p < DP_PURPOSES; p++)
        if (json_object_set_new(object, dp_memory_purpose(p), json_integer((json_int_t)r->peak_bytes[p])) !=
            0) {
            json_decref(object);
            return NULL;
        }
    return object;
}

json_t *cli_json_list(int count, json_t *(*item)(const void *from, int index), const void *from)
{
    json_t *array = json_array();
    for (int i = 0; array && i < count; i++)
        if (json_array_append_new(array, item(from, i)) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

dp_status cli_write_json(json_t *json, FILE *file, dp_error *err)
{
    if (!json)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: the result as JSON");
    int failed = json_dumpf(json, file, JSON_REAL_PRECISION(9) | JSON_INDENT(1));
    json_decref(json);
    fprintf(file, "\n");
    /* A stream that does not take it is noticed when it is closed. */
    return failed && !ferror(file) ? dp_fail(err, DP_ERROR_MEMORY, "out of memory: the result as JSON")
                                   : DP_OK;
}
