/* Stands in for the driver's libnvidia-ml.so.1, whose header is in no toolkit: a GPU has 4 GiB, of which it
 * says 1 GiB and as many MiB to be free as the first byte of its UUID has. Found by those who put its folder
 * into LD_LIBRARY_PATH. The prototypes are those of the NVML API Reference; functions return 0 for success.
 */
#include <stdio.h>
#include <string.h>

enum { NOT_INITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };

static int users;
static unsigned char first_bytes[256];

int nvmlInit_v2(void)
{
    users++;
    return 0;
}

int nvmlShutdown(void)
{
    return users-- > 0 ? 0 : NOT_INITIALIZED;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    unsigned first;
    if (users < 1)
        return NOT_INITIALIZED;
    if (!uuid || !handle || strlen(uuid) != strlen("GPU-00000000-0000-0000-0000-000000000000"))
        return INVALID_ARGUMENT;
    if (sscanf(uuid, "GPU-%2x", &first) != 1)
        return NOT_FOUND;
    first_bytes[first] = (unsigned char)first;
    *handle = &first_bytes[first];
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long memory[3])
{
    if (users < 1)
        return NOT_INITIALIZED;
    memory[0] = 4ull << 30;
    memory[1] = (1ull << 30) + ((unsigned long long)*(unsigned char *)handle << 20);
    memory[2] = memory[0] - memory[1];
    return 0;
}
