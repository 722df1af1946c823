// SPDX-License-Identifier: Apache-2.0
// The first thread hands out work to two others, as pigz does. With a file, the queue has room for some pieces more in
// each run than in the one before: when the first is at a place, the others are at another piece each time.
// Usage: queue [PIECES] [FILE]; each run adds a byte to FILE
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include "site.h"

enum { WORKERS = 2, ALIKE = 20, ROOM = 4, STEP = 5 };

static long pieces, given, taken, done, room;
static uint64_t sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, less = PTHREAD_COND_INITIALIZER;

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

static void *serve(void *of)
{
    for (;;) {
        long piece;
        uint64_t value;

        pthread_mutex_lock(&lock);
        while (taken == given && given < pieces)
            pthread_cond_wait(&more, &lock);
        piece = taken < given ? taken++ : -1;
        pthread_mutex_unlock(&lock);
        if (piece < 0)
            return of;
        value = labour(piece);
        pthread_mutex_lock(&lock);
        sum += value;
        done++;
        pthread_cond_signal(&less);
        pthread_mutex_unlock(&lock);
    }
}

__attribute__((noipa)) static void hand_out(void)
{
    pthread_mutex_lock(&lock);
    while (given - done >= room)
        pthread_cond_wait(&less, &lock);
    given++;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    pthread_t workers[WORKERS];

    pieces = size_argument(argc, argv, 800);
    room = ROOM + (argc > 2 ? STEP * (runs_so_far(argv[2]) % (2 * ALIKE / STEP)) : 0);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&workers[i], NULL, serve, NULL))
            return 2;
    for (long i = 0; i < pieces; i++)
        hand_out();
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    printf("queue %016llx\n", (unsigned long long)sum);
    return 0;
}
