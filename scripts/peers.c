/* The measurements of scripts/peers that no installed program makes: Open MPI's ping-pong and
 * stream between two ranks, and a memcpy in one thread.
 *
 *     peers ping   SIZE COUNT WINDOW [CPU0 CPU1]   under mpirun, 2 ranks
 *     peers stream SIZE COUNT WINDOW [CPU0 CPU1]   under mpirun, 2 ranks
 *     peers memcpy SIZE COUNT WINDOW [CPU0 CPU1]   alone, without MPI
 *
 * A sample is one round trip of ping, or WINDOW messages of stream, or WINDOW copies of memcpy;
 * COUNT samples are taken. Prints the seconds of one transfer of SIZE bytes in one direction: the
 * median of the samples, then the mean. Rank 0 runs on CPU0 and rank 1 on CPU1. */

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

enum { WINDOW_MAX = 65536, PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* What to measure. */
struct job {
    size_t size;
    size_t count;
    size_t window;
};

static void fail(const char *what)
{
    fprintf(stderr, "peers: %s\n", what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Memory of its own, each page already there: huge pages where the machine gives them, as g2g
 * asks for them too. */
static char *buffer(size_t size, int fill)
{
    size_t page = size < HUGE_PAGE ? PAGE : HUGE_PAGE;
    size_t whole = (size + page - 1) / page * page;
    char *memory = aligned_alloc(page, whole);
    if (memory == NULL)
        fail("out of memory");
    madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, fill, size);
    return memory;
}

static double *samples(size_t count)
{
    double *times = calloc(count, sizeof *times);
    if (times == NULL)
        fail("out of memory");
    memset(times, 1, count * sizeof *times);
    return times;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Prints median and mean of `times`, in which each sample holds `transfers` transfers and all of
 * them together took `total`. */
static void print_result(double *times, size_t count, double transfers, double total)
{
    qsort(times, count, sizeof *times, ascending);
    double median = (times[(count - 1) / 2] + times[count / 2]) / 2;
    printf("%.6e %.6e\n", median / transfers, total / transfers / (double)count);
}

/* Both ways in turn; a tenth of the count goes before as a warm-up. */
static void ping(struct job job, int rank)
{
    char *memory = buffer(job.size, rank + 1);
    double *times = samples(job.count);
    size_t warm_up = job.count / 10 + 1;
    double total = 0;
    for (size_t turn = 0; turn < warm_up + job.count; turn++) {
        if (rank == 0) {
            double start = now();
            MPI_Send(memory, (int)job.size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(memory, (int)job.size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            double time = now() - start;
            if (turn >= warm_up) {
                times[turn - warm_up] = time;
                total += time;
            }
        } else {
            MPI_Recv(memory, (int)job.size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(memory, (int)job.size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    if (rank == 0)
        print_result(times, job.count, 2, total);
    free(times);
    free(memory);
}

/* One window of messages, all under way at once. As in osu_bw they share one buffer on each side:
 * their content does not matter. */
static void window(struct job job, int rank, char *memory, MPI_Request *requests)
{
    for (size_t message = 0; message < job.window; message++) {
        if (rank == 0)
            MPI_Isend(memory, (int)job.size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[message]);
        else
            MPI_Irecv(memory, (int)job.size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[message]);
    }
    MPI_Waitall((int)job.window, requests, MPI_STATUSES_IGNORE);
}

/* One message from rank 1 to rank 0: all before it has arrived. */
static void acknowledge(int rank)
{
    char done = 0;
    if (rank == 0)
        MPI_Recv(&done, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&done, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
}

/* Windows from rank 0 to rank 1, then one acknowledgement. Windows are timed by the sender: a
 * message longer than the eager limit counts as sent once the receiver has taken it. */
static void stream(struct job job, int rank)
{
    char *memory = buffer(job.size, rank + 1);
    double *times = samples(job.count);
    MPI_Request *requests = calloc(job.window, sizeof(MPI_Request));
    if (requests == NULL)
        fail("out of memory");
    for (size_t turn = 0; turn < job.count / 10 + 1; turn++)
        window(job, rank, memory, requests);
    acknowledge(rank);

    double begin = now();
    for (size_t turn = 0; turn < job.count; turn++) {
        double start = now();
        window(job, rank, memory, requests);
        times[turn] = now() - start;
    }
    acknowledge(rank);
    if (rank == 0)
        print_result(times, job.count, (double)job.window, now() - begin);
    free(requests);
    free(times);
    free(memory);
}

static void copy(struct job job)
{
    char *source = buffer(job.size, 1);
    char *target = buffer(job.size, 2);
    double *times = samples(job.count);
    double total = 0;
    for (size_t turn = 0; turn < job.count; turn++) {
        double start = now();
        for (size_t copies = 0; copies < job.window; copies++) {
            memcpy(target, source, job.size);
            /* The compiler may not drop the copy: this could read it. */
            __asm__ volatile("" : : "r"(target), "r"(source) : "memory");
        }
        times[turn] = now() - start;
        total += times[turn];
    }
    print_result(times, job.count, (double)job.window, total);
    free(times);
    free(target);
    free(source);
}

static size_t number(const char *text, size_t most)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > most)
        fail("not a number in range");
    return value;
}

static void pin(size_t cpu)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        fail("cannot run on the CPU named");
}

static void with_mpi(const char *mode, struct job job)
{
    int rank, ranks;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        fail("needs 2 ranks");
    if (strcmp(mode, "ping") == 0)
        ping(job, rank);
    else
        stream(job, rank);
    MPI_Finalize();
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 7)
        fail("usage: peers ping|stream|memcpy SIZE COUNT WINDOW [CPU0 CPU1]");
    const char *mode = argv[1];
    struct job job = {
        .size = number(argv[2], 1 << 30),
        .count = number(argv[3], 1 << 30),
        .window = number(argv[4], WINDOW_MAX),
    };
    if (job.size == 0 || job.count == 0 || job.window == 0)
        fail("size, count and window must be 1 or more");

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive who started it */
    if (argc == 7) {
        /* Before MPI_Init, so that its memory is near this CPU too. */
        const char *rank = getenv("OMPI_COMM_WORLD_RANK");
        pin(number(argv[rank != NULL && strcmp(rank, "1") == 0 ? 6 : 5], CPU_SETSIZE - 1));
    }
    if (strcmp(mode, "memcpy") == 0)
        copy(job);
    else if (strcmp(mode, "ping") == 0 || strcmp(mode, "stream") == 0)
        with_mpi(mode, job);
    else
        fail("the mode must be ping, stream or memcpy");
    return 0;
}
