/* SPDX-License-Identifier: Apache-2.0
 * Ranks: processes that do the same side by side and say nothing to each other, as the Synapse paper has them. */
#ifndef PROBE_RANKS_H
#define PROBE_RANKS_H

/* Calls `prepare` and then `work` with its number in each of so many processes; in this one, where it is but one. No
 * `work` begins before every `prepare` is done: then `begin` is called, in this process. Returns when all are done: 0,
 * or an errno where a process could not be made, or -1 where one has failed, and said why; the others are ended then. */
int run_ranks(unsigned ranks, void (*prepare)(unsigned), void (*begin)(void), void (*work)(unsigned));

#endif
