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

enum { RANKS = 8, PART = 1 << 20, LETTER = 1 << 16, QUEUED = 64 };
typedef struct { char path[128]; } Id;
typedef struct { atomic_int size; char bytes[LETTER]; } Letter; /* the size is 0 where none is under way */
typedef struct { atomic_int came[2 * RANKS]; char parts[RANKS][PART]; Letter letters[RANKS][RANKS]; } Shared;
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

static struct { char *at; size_t left; int peer, sends; Comm *comm; } queued[QUEUED];
static int calls;

int ncclGroupStart(void) { calls = 0; return 0; }

static int queue_bytes(void *at, size_t count, int dtype, int peer, int sends, Comm *comm)
{
    if (dtype != 1 || calls == QUEUED || peer >= comm->size) return 4;
    queued[calls].at = at; queued[calls].left = count; queued[calls].peer = peer; queued[calls].sends = sends;
    queued[calls++].comm = comm;
    return 0;
}

int ncclSend(const void *from, size_t count, int dtype, int peer, Comm *comm, void *stream)
{ return queue_bytes((void *)from, count, dtype, peer, 1, comm); }
int ncclRecv(void *to, size_t count, int dtype, int peer, Comm *comm, void *stream)
{ return queue_bytes(to, count, dtype, peer, 0, comm); }

/* Moves a letter of each transfer at a time until all have ended. */
int ncclGroupEnd(void)
{
    for (int left = calls; left;) {
        left = 0;
        for (int i = 0; i < calls; i++) {
            Comm *comm = queued[i].comm;
            int mine = comm->rank, peer = queued[i].peer;
            Letter *letter = queued[i].sends ? &comm->shared->letters[mine][peer] : &comm->shared->letters[peer][mine];
            size_t size = queued[i].left < LETTER ? queued[i].left : LETTER;
            if (comm->aborted) return 3;
            if (size && queued[i].sends && !letter->size) {
                memcpy(letter->bytes, queued[i].at, size);
                letter->size = size;
            } else if (size && !queued[i].sends && letter->size) {
                if (letter->size != size) return 4;
                memcpy(queued[i].at, letter->bytes, size);
                letter->size = 0;
            } else {
                left |= size > 0;
                continue;
            }
            queued[i].at += size;
            queued[i].left -= size;
            left |= queued[i].left > 0;
        }
        if (left) sched_yield();
    }
    return 0;
}

int ncclReduceScatter(void) { return 4; }
int ncclAllGather(void) { return 4; }
int ncclBroadcast(void) { return 4; }
