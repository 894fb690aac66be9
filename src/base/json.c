#include "base/json.h"

static void give_up(json_t **json, json_t *value)
{
    if (!*json) /* else the call that failed has released the value */
        json_decref(value);
    json_decref(*json);
    *json = NULL;
}

void dp_json_append(json_t **array, json_t *value)
{
    if (!*array || json_array_append_new(*array, value) != 0)
        give_up(array, value);
}

void dp_json_set(json_t **object, const char *key, json_t *value)
{
    if (!*object || json_object_set_new(*object, key, value) != 0)
        give_up(object, value);
}
