/* A CUDA driver whose device is the processor, as far as a center on devices calls it: every call is done when it
   returns. Memory that others may open is a memfd, found by the process id and the number of the file: as on a device it
   cannot be opened once its owner is dead, and whoever has it open keeps it. A module is the path of a library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t u64;
typedef struct { int pid, file; u64 size; char rest[48]; } Handle;

static struct { u64 address, size; int file; } shared[1024]; /* what this process has mapped */
static int count;
static __thread int entered;

static u64 map(int file, u64 size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED || count == 1024) return 0;
    shared[count].address = (u64)found; shared[count].size = size; shared[count++].file = file;
    return (u64)found;
}

int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *found) { *found = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(int *uuid, int device) { memset(uuid, 0, 16); *uuid = getpid(); return 0; } /* each has its own */
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 16 ? 1 : 9; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &count; return 0; }
int cuCtxPushCurrent_v2(void *context) { entered++; return context == &count ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { *context = &count; return entered-- > 0 ? 0 : 201; }
int cuCtxGetDevice(int *device) { *device = 0; return entered ? 0 : 201; }
int cuCtxSynchronize(void) { return entered ? 0 : 201; }
int cuEventCreate(void **event, unsigned flags) { *event = &shared; return 0; }
int cuEventRecord(void *event, void *stream) { return event == &shared ? 0 : 400; }
int cuEventSynchronize(void *event) { return event == &shared ? 0 : 400; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return event == &shared ? 0 : 400; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &entered; return 0; }
int cuStreamQuery(void *stream) { return 0; }
int cuStreamSynchronize(void *stream) { return entered ? 0 : 201; }
int cuStreamDestroy_v2(void *stream) { return 0; }

int cuMemAlloc_v2(u64 *address, size_t size)
{
    if (!entered) return 201;
    if (size % (2 << 20)) { *address = (u64)aligned_alloc(256, (size + 255) / 256 * 256); return *address ? 0 : 2; }
    int file = memfd_create("device", MFD_CLOEXEC);
    *address = file < 0 || ftruncate(file, size) ? 0 : map(file, size);
    return *address ? 0 : 2;
}

int cuMemFree_v2(u64 address) { free((void *)address); return 0; }
int cuMemsetD8_v2(u64 address, unsigned char value, size_t size) { memset((void *)address, value, size); return 0; }
int cuMemsetD32Async(u64 address, unsigned value, size_t count, void *stream)
{ while (count--) ((unsigned *)address)[count] = value; return 0; }
int cuMemHostAlloc(void **address, size_t size, unsigned flags) { *address = malloc(size); return *address ? 0 : 2; }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t size, void *stream) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuMemcpyDtoD_v2(u64 to, u64 from, size_t size) { memcpy((void *)to, (void *)from, size); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t size, void *stream) { memcpy(to, (void *)from, size); return 0; }
int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) { return 0; }
int cuMemHostUnregister(void *memory) { return 0; }
int cuMemHostGetDevicePointer_v2(u64 *address, void *memory, unsigned flags) { *address = (u64)memory; return 0; }

int cuIpcGetMemHandle(Handle *handle, u64 address)
{
    for (int i = 0; i < count; i++)
        if (shared[i].address == address) {
            handle->pid = getpid(); handle->file = shared[i].file; handle->size = shared[i].size;
            return 0;
        }
    return 1;
}

int cuIpcOpenMemHandle_v2(u64 *address, Handle handle, unsigned flags)
{
    char path[64];
    if (handle.pid == getpid()) return 208; /* as CUDA refuses a process its own memory */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    *address = file < 0 ? 0 : map(file, handle.size);
    if (file >= 0) close(file);
    return *address ? 0 : 1;
}

int cuIpcCloseMemHandle(u64 address)
{
    for (int i = 0; i < count; i++)
        if (shared[i].address == address) {
            munmap((void *)address, shared[i].size);
            shared[i] = shared[--count];
            return 0;
        }
    return 1;
}

int cuModuleLoadData(void **module, const char *path) { *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); return *module ? 0 : 200; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    char entry[256];
    snprintf(entry, sizeof entry, "%s_entry", name);
    *function = dlsym(module, entry);
    return *function ? 0 : 500;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c,
                   unsigned bytes, void *stream, void **arguments, void **extra)
{
    if (!entered || !x) return 1;
    ((void (*)(void **))function)(arguments);
    return 0;
}
