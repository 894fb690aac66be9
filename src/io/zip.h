/* Zip archives of uncompressed entries, which is what PyTorch writes
 * (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3; Zip64 as well). The reader takes the
 * central directory's word for nothing: every offset and size, the local headers and the checksums are
 * checked. */
#ifndef DP_IO_ZIP_H
#define DP_IO_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct dp_zip_entry {
    const char *name; /* not ended by a zero */
    size_t name_length;
    const unsigned char *data;
    size_t size;
    uint32_t checksum;
} dp_zip_entry;

typedef struct dp_zip dp_zip;

/* Reads the directory of an archive in memory, which must outlive the result. DP_ERROR_IO says what is
 * unsound, encrypted or compressed. Owner: the caller. */
dp_status dp_zip_parse(const void *bytes, size_t size, dp_zip **out, dp_error *err);
void dp_zip_free(dp_zip *zip); /* NULL is fine */
size_t dp_zip_count(const dp_zip *zip);
const dp_zip_entry *dp_zip_at(const dp_zip *zip, size_t index);       /* in order of their names */
const dp_zip_entry *dp_zip_find(const dp_zip *zip, const char *name); /* NULL if absent */
dp_status dp_zip_check(const dp_zip_entry *entry, dp_error *err);     /* its contents against its checksum */

/* An archive that appears under its path whole or not at all. */
typedef struct dp_zip_writer dp_zip_writer;
dp_status dp_zip_create(const char *path, dp_zip_writer **out, dp_error *err);
/* Adds an entry whose contents start at a multiple of 64 bytes, as PyTorch has it. */
dp_status dp_zip_add(dp_zip_writer *zip, const char *name, const void *data, size_t size, dp_error *err);
dp_status dp_zip_commit(dp_zip_writer *zip, dp_error *err); /* ends it, success or not */
void dp_zip_abandon(dp_zip_writer *zip);                    /* leaves nothing; NULL is fine */

#endif
