// SPDX-License-Identifier: Apache-2.0
// Lives in its working folder and dies of an illegal instruction when it does not find what it left there. Each round:
// reads a record of "input" (open all the time), and reads it again through a descriptor of its own; appends to
// "output" (open all the time); writes "draft", renames it to "result", reads it back and removes it; and every tenth
// round writes "notes" anew, with another length, and reads it in the rounds after that. Now and then "output" is
// closed, renamed to "output.done", and begun again.
// Usage: household ROUNDS        input: lines "0000...0001", 63 digits, from 0 on; read round and round
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "site.h"

uint64_t own_mix(uint64_t state);

static void require(int condition)
{
    if (!condition)
        __builtin_trap();
}

static uint64_t record(int file, uint64_t number)
{
    char text[65] = {0};
    require(pread(file, text, 64, (off_t)number * 64) == 64 && strtoull(text, NULL, 10) == number);
    return number;
}

static void draft(uint64_t round)
{
    char text[32], back[32] = {0};
    int length = snprintf(text, sizeof text, "round %llu\n", (unsigned long long)round);
    int file = open("draft", O_WRONLY | O_CREAT | O_EXCL, 0600);
    require(write(file, text, (size_t)length) == length && close(file) == 0);
    require(rename("draft", "result") == 0);
    file = open("result", O_RDONLY);
    require(read(file, back, sizeof back) == length && !strcmp(text, back) && close(file) == 0);
    require(unlink("result") == 0);
}

static int fresh_notes(uint64_t round)
{
    char text[4000];
    size_t length = 100 + round * 7 % 3000;
    memset(text, 'a' + (int)(round % 26), length);
    int file = open("notes", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(write(file, text, length) == (ssize_t)length && close(file) == 0);
    return open("notes", O_RDONLY);
}

static void check_notes(int file, uint64_t round)
{
    char text[4000];
    size_t length = 100 + round * 7 % 3000;
    require(pread(file, text, sizeof text, 0) == (ssize_t)length);
    require(text[0] == 'a' + (int)(round % 26) && text[length - 1] == text[0]);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        puts("household: 0 rounds");
        return 0;
    }
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 0), state = 1, noted = 0;
    int input = open("input", O_RDONLY), notes = -1;
    int output = open("output", O_WRONLY | O_CREAT | O_TRUNC, 0640);
    struct stat status;
    require(input >= 0 && output >= 0 && fstat(input, &status) == 0 && status.st_size >= 64);
    for (uint64_t round = 0, lines = 0; round < rounds; round++, lines++) {
        uint64_t number = round % ((uint64_t)status.st_size / 64);
        int again = open("input", O_RDONLY);
        state = own_mix(state + record(input, number) + record(again, number));
        close(again);
        state = work(state);
        if (round % 10 == 0) {
            if (notes >= 0)
                close(notes);
            notes = fresh_notes(noted = round);
        }
        check_notes(notes, noted);
        draft(round);
        require(dprintf(output, "%016llx\n", (unsigned long long)state) == 17);
        if (round % 16 == 15) {
            require(lseek(output, 0, SEEK_END) == (off_t)(lines + 1) * 17 && close(output) == 0);
            require(rename("output", "output.done") == 0);
            output = open("output", O_WRONLY | O_CREAT | O_EXCL, 0640);
            lines = (uint64_t)-1;
        }
    }
    printf("household %016llx\n", (unsigned long long)state);
    return 0;
}
