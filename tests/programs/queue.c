// SPDX-License-Identifier: Apache-2.0
// The first thread hands out work to two others, as pigz does. With a file, the queue has room for some pieces more in
// each run than in the one before: when the first is at a place, the others are at another piece each time.
// Usage: queue [PIECES] [FILE]; each run adds a byte to FILE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>
#include "site.h"

enum { WORKERS = 2, ALIKE = 20, ROOM = 4, STEP = 5 };

static long pieces, taken;
static uint64_t sum;
static sem_t handed, room;

static long runs_so_far(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    long runs;

    if (file < 0 || write(file, ".", 1) != 1)
        exit(3);
    runs = lseek(file, 0, SEEK_END);
    close(file);
    return runs;
}

/* Pieces that take long, and pieces that do not. */
static uint64_t labour(long piece)
{
    uint64_t value = (uint64_t)piece + 1;

    if (piece / ALIKE % 2)
        for (int i = 0; i < 4; i++)
            value = work(value);
    else
        for (int i = 0; i < 300000; i++)
            value = value * 6364136223846793005u + (value >> 33);
    return value;
}

/* No code of its own depends on who waits how often: the first thread executes the same in every run. */
static void *serve(void *of)
{
    for (;;) {
        long piece;

        sem_wait(&handed);
        piece = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
        if (piece >= pieces)
            return of;
        __atomic_fetch_add(&sum, labour(piece), __ATOMIC_RELAXED);
        sem_post(&room);
    }
}

__attribute__((noipa)) static void hand_out(void)
{
    sem_wait(&room);
    sem_post(&handed);
}

int main(int argc, char **argv)
{
    pthread_t workers[WORKERS];
    long ahead;

    pieces = size_argument(argc, argv, 800);
    ahead = ROOM + (argc > 2 ? STEP * (runs_so_far(argv[2]) % (2 * ALIKE / STEP)) : 0);
    sem_init(&handed, 0, 0);
    sem_init(&room, 0, (unsigned)ahead);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&workers[i], NULL, serve, NULL))
            return 2;
    for (long i = 0; i < pieces; i++)
        hand_out();
    for (int i = 0; i < WORKERS; i++)
        sem_post(&handed);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    printf("queue %016llx\n", (unsigned long long)sum);
    return 0;
}
