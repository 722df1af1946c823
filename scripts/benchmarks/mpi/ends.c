// SPDX-License-Identifier: Apache-2.0
//
// Seconds from the end of MPI_Init to the beginning of MPI_Finalize, wall and CPU of the calling thread. Preloaded, it
// stands before the MPI library, behind the recorder, or before a replay's replacements. Both names of each call are
// here: a recorder and Fortran's bindings call the second one.
//
// PROBE_MPI_ENDS names a folder. Each rank writes a file there, named by its process.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int MPI_Init(int *argc, char ***argv);
int PMPI_Init(int *argc, char ***argv);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Finalize(void);
int PMPI_Finalize(void);

enum { PATH_BYTES = 4096 };

static double begun_wall, begun_cpu;

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void begin(void)
{
    begun_wall = seconds_of(CLOCK_MONOTONIC);
    begun_cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static void end(void)
{
    const double wall = seconds_of(CLOCK_MONOTONIC) - begun_wall;
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID) - begun_cpu;
    const char *folder = getenv("PROBE_MPI_ENDS");
    char path[PATH_BYTES];
    if (folder == NULL || snprintf(path, sizeof path, "%s/%d", folder, (int)getpid()) >= PATH_BYTES)
        return;
    FILE *out = fopen(path, "w");
    if (out == NULL)
        return;
    fprintf(out, "%.9f %.9f\n", wall, cpu);
    fclose(out);
}

#define ENDS(prefix)                                                                                         \
    int prefix##_Init(int *argc, char ***argv)                                                               \
    {                                                                                                        \
        int (*next)(int *, char ***);                                                                        \
        *(void **)(&next) = dlsym(RTLD_NEXT, #prefix "_Init");                                               \
        const int result = next(argc, argv);                                                                 \
        begin();                                                                                             \
        return result;                                                                                       \
    }                                                                                                        \
                                                                                                             \
    int prefix##_Init_thread(int *argc, char ***argv, int required, int *provided)                           \
    {                                                                                                        \
        int (*next)(int *, char ***, int, int *);                                                            \
        *(void **)(&next) = dlsym(RTLD_NEXT, #prefix "_Init_thread");                                        \
        const int result = next(argc, argv, required, provided);                                             \
        begin();                                                                                             \
        return result;                                                                                       \
    }                                                                                                        \
                                                                                                             \
    int prefix##_Finalize(void)                                                                              \
    {                                                                                                        \
        int (*next)(void);                                                                                   \
        *(void **)(&next) = dlsym(RTLD_NEXT, #prefix "_Finalize");                                           \
        end();                                                                                               \
        return next();                                                                                       \
    }

ENDS(MPI)
ENDS(PMPI)
