// SPDX-License-Identifier: Apache-2.0
// A SIGSEGV handler that leaves by siglongjmp. The instruction that faults is itself one that
// a tracer displaces, so the fault may happen inside a stub; with "skip" the handler instead
// moves the saved instruction pointer behind the instruction it knows (a documented limit).
// site_fault is attempted exactly as often as its count says, and never completes.
// Usage: faults [THOUSAND_FAULTS] [skip]
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#include "site.h"

static sigjmp_buf back;
static volatile uint64_t handled, moved;
static int skip;
static volatile int *volatile nowhere = (volatile int *)16;
extern const char site_fault[], site_fault_end[];

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (info->si_addr != (void *)16)
        abort();
    handled++;
    if (!skip)
        siglongjmp(back, 1);
    if (*at != (greg_t)(uintptr_t)site_fault) {
        moved++;
        siglongjmp(back, 1);
    }
    *at = (greg_t)(uintptr_t)site_fault_end;
}

__attribute__((noipa)) static void touch(void)
{
    __asm__ volatile(".globl site_fault, site_fault_end\n"
                     "site_fault:\n\tmovl $0x51735173, (%0)\n"
                     "site_fault_end:"
                     :
                     : "r"(nowhere)
                     : "memory");
}

int main(int argc, char **argv)
{
    uint64_t faults = (uint64_t)size_argument(argc, argv, 200) * 1000;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    volatile uint64_t sum = 1;
    skip = argc > 2;
    if (sigaction(SIGSEGV, &action, NULL)) {
        perror("faults");
        return 2;
    }
    for (volatile uint64_t i = 0; i < faults; i++) {
        if (!sigsetjmp(back, 1))
            touch();
        sum = sum * 31 + i;
    }
    printf("faults %016llx %s\n", (unsigned long long)sum,
           handled != faults ? "WRONG" : moved ? "moved" : "ok");
    print_count("site_fault", faults);
    return handled != faults;
}
