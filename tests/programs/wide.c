// SPDX-License-Identifier: Apache-2.0
// All vector and mask registers of AVX-512, or of AVX with an argument "avx", live across the start of the region.
#include <string.h>
#include "site.h"

static uint64_t in[32][8] __attribute__((aligned(64))), out[32][8] __attribute__((aligned(64)));
static uint64_t masks[8], masks_out[8];

#define ALL(X)                                                                                    \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)   \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define LOAD(n) "vmovdqa64 " #n "*64(%0), %%zmm" #n "\n\t"
#define STORE(n) "vmovdqa64 %%zmm" #n ", " #n "*64(%1)\n\t"
#define MASKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define LOAD_MASK(n) "kmovq " #n "*8(%2), %%k" #n "\n\t"
#define STORE_MASK(n) "kmovq %%k" #n ", " #n "*8(%3)\n\t"

// Both markers, in functions that touch no vector register.
__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa, used)) static void site_both(void)
{
    region_warm();
    region_start();
}

__attribute__((noipa, target("avx512f,avx512bw"))) static void across(void)
{
    __asm__ volatile(ALL(LOAD) MASKS(LOAD_MASK) "call site_both\n\t" ALL(STORE) MASKS(STORE_MASK)
                         "vzeroupper"
                     :
                     : "r"(in), "r"(out), "r"(masks), "r"(masks_out)
                     : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",
                       "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2",
                       "k3", "k4", "k5", "k6", "k7");
}

__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

#define ALL_AVX(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LOAD_AVX(n) "vmovdqa " #n "*64(%0), %%ymm" #n "\n\t"
#define STORE_AVX(n) "vmovdqa %%ymm" #n ", " #n "*64(%1)\n\t"

__attribute__((noipa)) static void across_avx(void)
{
    __asm__ volatile(ALL_AVX(LOAD_AVX) "call site_both\n\t" ALL_AVX(STORE_AVX) "vzeroupper"
                     :
                     : "r"(in), "r"(out)
                     : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

int main(int argc, char **argv)
{
    int avx = argc > 1 && !strcmp(argv[1], "avx");
    if (!(avx ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512bw")))
        return 3;
    for (int i = 0; i < 32 * 8; i++)
        in[i / 8][i % 8] = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
    for (int i = 1; i < 8; i++)
        masks[i] = 0xc2b2ae3d27d4eb4fu * (uint64_t)i;
    if (avx) {
        across_avx();
        for (int i = 0; i < 16; i++)
            if (memcmp(in[i], out[i], 32))
                return 4;
    } else {
        across();
        if (memcmp(in, out, sizeof(in)) || memcmp(masks, masks_out, sizeof(masks)))
            return 4;
    }
    region_end();
    puts("wide: the same");
    return 0;
}
