/* NCCL among processes of one host whose devices are the processor: a sum is made when the call returns, on any stream.
   Every rank adds up the parts of all in a file that they map, in the order of their numbers. ncclCommAbort ends the
   wait for a rank that does not come. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, PART = 1 << 20 };
typedef struct { char path[128]; } Id;
typedef struct { atomic_int came[2 * RANKS]; char parts[RANKS][PART]; } Shared;
typedef struct { Shared *shared; int size, rank; int calls; atomic_int aborted; } Comm;

const char *ncclGetErrorString(int code) { return code == 3 ? "internal error" : code == 4 ? "invalid argument" : "?"; }

int ncclGetUniqueId(Id *id)
{
    static int number;
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "%s/nccl-%d-%d", getenv("PROCESSOR_NCCL"), getpid(), number++);
    return 0;
}

static int meet(Comm *comm, int half)
{
    atomic_int *came = comm->shared->came + half * RANKS;
    came[comm->rank]++;
    for (int rank = 0; rank < comm->size; rank++)
        while (came[rank] < came[comm->rank]) {
            if (comm->aborted) return 3;
            sched_yield();
        }
    return 0;
}

int ncclCommInitRank(Comm **out, int size, Id id, int rank)
{
    int file = open(id.path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || size > RANKS || ftruncate(file, sizeof(Shared))) return 4;
    Comm *comm = calloc(1, sizeof *comm);
    comm->shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    comm->size = size; comm->rank = rank;
    *out = comm;
    return meet(comm, 0);
}

int ncclCommAbort(Comm *comm) { comm->aborted = 1; return 0; }

#define ADD(type) for (size_t i = 0; i < count; i++) { type sum = 0; \
    for (int rank = 0; rank < comm->size; rank++) sum += ((type *)comm->shared->parts[rank])[i]; ((type *)to)[i] = sum; }

/* Sums of float32 and float64 alone. */
int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int op, Comm *comm, void *stream)
{
    size_t size = dtype == 7 ? 4 : 8;
    if ((dtype != 7 && dtype != 8) || op != 0 || count * size > PART) return 4;
    memcpy(comm->shared->parts[comm->rank], from, count * size);
    int failed = meet(comm, 0);
    if (!failed) {
        if (dtype == 7) ADD(float) else ADD(double)
        failed = meet(comm, 1); /* nobody overwrites what another still adds up */
    }
    return failed;
}

int ncclReduceScatter(void) { return 4; }
int ncclAllGather(void) { return 4; }
int ncclBroadcast(void) { return 4; }
