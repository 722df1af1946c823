/* SPDX-License-Identifier: Apache-2.0
 * Read a plan, and refuse what is none. */
#include "plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "kernels.h"

#define MOST_SAMPLES (1u << 18)
#define MOST_THREADS 1024
#define MOST_RANKS 1024
#define MOST_BLOCK (1u << 30)

struct plan emulator_plan = {.threads = 1, .ranks = 1, .files = 1, .read_block = MOVED, .write_block = MOVED};

static uint64_t number(const char *text, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long found = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+' || *text == ' ' || found > most)
        emulator_fail("a number of the plan", EINVAL);
    return found;
}

static void set(const char *name, const char *value)
{
    if (!strcmp(name, "kernel")) {
        if (emulator_plan.mixed == MOST_KERNELS)
            emulator_fail("too many kernels", EINVAL);
        snprintf(emulator_plan.kernels[emulator_plan.mixed++], sizeof emulator_plan.kernels[0], "%s", value);
    } else if (!strcmp(name, "folder"))
        snprintf(emulator_plan.folder, sizeof emulator_plan.folder, "%s", value);
    else if (!strcmp(name, "send_to"))
        snprintf(emulator_plan.send_to, sizeof emulator_plan.send_to, "%s", value);
    else if (!strcmp(name, "receive_from"))
        snprintf(emulator_plan.receive_from, sizeof emulator_plan.receive_from, "%s", value);
    else if (!strcmp(name, "equal"))
        emulator_plan.seconds = !strcmp(value, "seconds");
    else if (!strcmp(name, "threads"))
        emulator_plan.threads = (unsigned)number(value, MOST_THREADS);
    else if (!strcmp(name, "ranks"))
        emulator_plan.ranks = (unsigned)number(value, MOST_RANKS);
    else if (!strcmp(name, "files"))
        emulator_plan.files = (unsigned)number(value, MOST_FILES);
    else if (!strcmp(name, "read_block"))
        emulator_plan.read_block = number(value, MOST_BLOCK);
    else if (!strcmp(name, "write_block"))
        emulator_plan.write_block = number(value, MOST_BLOCK);
    else if (!strcmp(name, "samples"))
        emulator_plan.count = number(value, MOST_SAMPLES);
    else
        emulator_fail("an unknown line of the plan", EINVAL);
}

static char *next_line(char *line, int size)
{
    if (!fgets(line, size, stdin))
        emulator_fail("the plan ends early", EINVAL);
    size_t length = strlen(line);
    if (!length || line[length - 1] != '\n')
        emulator_fail("a line of the plan", EINVAL);
    line[length - 1] = 0;
    return line;
}

void emulator_read_plan(void)
{
    char line[5000];
    if (strcmp(next_line(line, sizeof line), "emulation 1"))
        emulator_fail("not a plan of this version", EINVAL);
    while (!emulator_plan.count) {
        char *value = strchr(next_line(line, sizeof line), ' ');
        if (!value)
            emulator_fail("a line of the plan", EINVAL);
        *value++ = 0;
        set(line, value);
    }
    if (!emulator_plan.threads || !emulator_plan.ranks || !emulator_plan.files || !emulator_plan.mixed || !emulator_plan.read_block || !emulator_plan.write_block)
        emulator_fail("a number of the plan", EINVAL);
    emulator_plan.samples = calloc(emulator_plan.count, sizeof *emulator_plan.samples);
    if (!emulator_plan.samples)
        emulator_fail("no memory for the plan", ENOMEM);
    for (uint64_t at = 0; at < emulator_plan.count; at++) {
        struct sample *one = &emulator_plan.samples[at];
        int used = 0;
        char *rest = next_line(line, sizeof line);
        /* A number of iterations for each kernel, then all else. */
        for (unsigned kernel = 0; kernel < emulator_plan.mixed; kernel++, rest += used)
            if (sscanf(rest, "%" SCNu64 " %n", &one->iterations[kernel], &used) != 1)
                emulator_fail("a sample of the plan", EINVAL);
        int found =
            sscanf(rest, "%" SCNu64 " %lf %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %lf%n",
                   &one->system_calls, &one->cpu, &one->read, &one->written, &one->resident, &one->sent,
                   &one->received, &one->wait, &used);
        if (found != 8 || rest[used] || !(one->cpu >= 0) || !(one->wait >= 0 && one->wait < 1e9))
            emulator_fail("a sample of the plan", EINVAL);
        if (one->resident > emulator_plan.most_resident)
            emulator_plan.most_resident = one->resident;
        emulator_plan.reads |= one->read > 0;
    }
    if (strcmp(next_line(line, sizeof line), "end"))
        emulator_fail("the plan does not end", EINVAL);
}
