/* Building JSON with Jansson so that no failure is lost: what could not be made or added leaves NULL behind,
 * and NULL takes whatever follows with it. */
#ifndef DP_BASE_JSON_H
#define DP_BASE_JSON_H

#include <jansson.h>

/* Adds value, which they own from here on, to an array or under a key of an object. */
void dp_json_append(json_t **array, json_t *value);
void dp_json_set(json_t **object, const char *key, json_t *value);

#endif
