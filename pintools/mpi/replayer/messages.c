// SPDX-License-Identifier: Apache-2.0
//
// Answers delivered to the rank, and hashes of what it sends compared.

static int take(unsigned function)
{
	calls_made++;
	if (!is_begun || is_over)
		left(is_over ? END : BEGIN, name_of(function));
	if (repeats > 0) {
		repeats--;
		at = (const char *)(current + 1);
	} else {
		do {
			open_record();
			if (current->function == LAYOUT)
				learn_layout();
		} while (current->function == LAYOUT);
		repeats = current->repeats;
	}
	if (current->function != function)
		left(current->function, name_of(function));
	return (int)get_int();
}

static void deliver_piece(char *base)
{
	char *into = base + get_int();
	int64_t left = get_int();
	const int64_t number = get_int();
	if (left < 0 || left > end - at)
		stop("a message of the recording is too short");
	const char *from = get_bytes((size_t)left);
	if (number == 0) {
		memcpy(into, from, (size_t)left);
		return;
	}
	const Layout *found = layout(number);
	for (; left > 0; into += found->extent)
		for (size_t n = 0; n < found->runs && left > 0; n++) {
			const size_t some = (int64_t)found->run[n].bytes < left ? found->run[n].bytes : (size_t)left;
			memcpy(into + found->run[n].at, from, some);
			from += some;
			left -= (int64_t)some;
		}
}

static void deliver(void *base)
{
	for (int64_t pieces = get_int(); pieces > 0; pieces--)
		deliver_piece(base);
}

static void check_sent(const void *data)
{
	int64_t bytes = get_int();
	const uint64_t all = (uint64_t)bytes;
	const int64_t number = get_int();
	const uint64_t recorded = (uint64_t)get_int();
	uint64_t hash = 0;
	if (!is_checking)
		return;
	messages_sent++;
	bytes_sent += all;
	if (number == 0)
		hash = mixed(hash, data, (uint64_t)bytes);
	else {
		const Layout *found = layout(number);
		for (const char *from = data; bytes > 0; from += found->extent)
			for (size_t n = 0; n < found->runs && bytes > 0; n++) {
				hash = mixed(hash, from + found->run[n].at, found->run[n].bytes);
				bytes -= (int64_t)found->run[n].bytes;
			}
	}
	if (hash == recorded)
		return;
	bytes_differ += all;
	if (messages_differ++ == 0)
		first_differing = calls_made;
}
