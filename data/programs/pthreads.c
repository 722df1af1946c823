// SPDX-License-Identifier: Apache-2.0
// Threads that share work by what POSIX has: a barrier, a queue behind a lock, a pool that waits for orders, a pipeline.
// Usage: pthreads KERNEL [ROUNDS]; OMP_NUM_THREADS says how many threads (1 to 64; a pipeline has two).
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, ITEMS = 256, SIZE = 1 << 15, SLOTS = 8 };

static int threads = 1;
static long rounds;
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static long next, finished, order, filled, emptied;
static double parts[MOST][8], slots[SLOTS][SIZE];

static double work(long seed, long steps)
{
    double x = (double)seed * 1e-3 + 0.5;
    for (long i = 0; i < steps; i++)
        x = sqrt(x * 1.0001 + (double)(i & 15));
    return x;
}

// Equal parts, a barrier behind each round, two kinds of rounds.
static void *by_barrier(void *of)
{
    long number = (long)of;
    for (long round = 0; round < rounds; round++) {
        parts[number][0] += work(round, round / 50 % 2 ? 60000 : 90000);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

// Whoever is free takes the next item; items differ in length.
static void *by_queue(void *of)
{
    long number = (long)of;
    for (;;) {
        pthread_mutex_lock(&lock);
        long item = next < rounds * ITEMS ? next++ : -1;
        pthread_mutex_unlock(&lock);
        if (item < 0)
            return NULL;
        parts[number][0] += work(item, 500 + item * 7919 % 1500);
    }
}

static void take_part(long number)
{
    for (long item; (item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < ITEMS;)
        parts[number][0] += work(item, 1500);
}

// Waits asleep between orders.
static void *in_pool(void *of)
{
    long number = (long)of;
    for (long seen = 0;;) {
        pthread_mutex_lock(&lock);
        while (order == seen)
            pthread_cond_wait(&more, &lock);
        seen = order;
        pthread_mutex_unlock(&lock);
        if (seen < 0)
            return NULL;
        take_part(number);
        pthread_mutex_lock(&lock);
        if (++finished == threads - 1)
            pthread_cond_signal(&done);
        pthread_mutex_unlock(&lock);
    }
}

static void give_orders(void)
{
    for (long round = 1; round <= rounds; round++) {
        pthread_mutex_lock(&lock);
        next = finished = 0;
        order = round;
        pthread_cond_broadcast(&more);
        pthread_mutex_unlock(&lock);
        take_part(0);
        parts[0][1] += work(round, 40000);
        pthread_mutex_lock(&lock);
        while (finished < threads - 1)
            pthread_cond_wait(&done, &lock);
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    order = -1;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
}

static void step(long *counter, const long *other, long ahead)
{
    pthread_mutex_lock(&lock);
    while (*counter - *other >= ahead)
        pthread_cond_wait(&more, &lock);
    pthread_mutex_unlock(&lock);
}

static void passed(long *counter)
{
    pthread_mutex_lock(&lock);
    ++*counter;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
}

// The second half of a pipeline: what the first has filled.
static void *empties(void *of)
{
    for (long round = 0; round < rounds; round++) {
        step(&emptied, &filled, 0);
        for (long i = 0; i < SIZE; i++)
            parts[1][0] += sqrt(slots[round % SLOTS][i]);
        passed(&emptied);
    }
    return of;
}

static void fills(void)
{
    for (long round = 0; round < rounds; round++) {
        step(&filled, &emptied, SLOTS);
        for (long i = 0; i < SIZE; i++)
            slots[round % SLOTS][i] = sqrt((double)(i + round));
        passed(&filled);
    }
}

int main(int argc, char **argv)
{
    const char *wanted = getenv("OMP_NUM_THREADS"), *kernel = argc > 1 ? argv[1] : "";
    int pool = !strcmp(kernel, "pool"), pipeline = !strcmp(kernel, "pipeline"),
        by = !strcmp(kernel, "barrier");
    pthread_t others[MOST];
    double sum = 0.0;

    if (!pool && !pipeline && !by && strcmp(kernel, "queue"))
        return fprintf(stderr, "pthreads: no such kernel\n"), 2;
    threads = pipeline ? 2 : wanted ? atoi(wanted) : 1;
    if (threads < 1 || threads > MOST)
        return 2;
    rounds = argc > 2 ? atol(argv[2]) : pool ? 3500 : pipeline ? 80000 : by ? 20000 : 6000;
    if (argc <= 2)
        rounds /= by && threads > 1 ? threads : 1;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    void *(*run)(void *) = pool ? in_pool : pipeline ? empties : by ? by_barrier : by_queue;
    for (long i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, run, (void *)i))
            return 2;
    if (pool)
        give_orders();
    else if (pipeline)
        fills();
    else
        run(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    for (int i = 0; i < threads; i++)
        sum += parts[i][0] + parts[i][1];
    printf("%s %.5g\n", kernel, sum);
    return 0;
}
