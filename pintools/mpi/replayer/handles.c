// SPDX-License-Identifier: Apache-2.0
//
// Handles: numbers of our own, which no constant of a library has.

// Odd, so that no address is one; above those of constants that are numbers.
enum { FIRST_HANDLE = 0x60000001 };

static uint32_t handles_made;

static int new_number(void)
{
	return (int)(FIRST_HANDLE + 2 * handles_made++);
}

#define HANDLE(type, number) ((type)(intptr_t)(number))
#define NUMBER(handle) ((int)(intptr_t)(handle))
