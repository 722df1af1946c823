// SPDX-License-Identifier: Apache-2.0
// A calendar of days, each an unsorted list, and a heap of the present day. What lies behind the last day waits for the
// next calendar, whose days are as long as a few events took lately.

#include "events.h"

#include "blocks.h"

#include <math.h>

// PER_DAY: events of a day, more or less. AHEAD: days before one begins, when it is looked at first.
enum { NONE, PER_DAY = 6, ON_CARD = 14, AHEAD = 3 };

// Some of whose events are on one day. A line of the cache.
typedef struct {
	uint32_t next, count, who[ON_CARD];
} Card;

// Of the present day: a copy, so that the heap moves within few lines of the cache.
typedef struct {
	double time;
	uint64_t order;
	uint32_t who;
} Present;

static char *first_event;
static size_t step;
static void (*expect)(uint32_t who, int time);
static Card *cards;       // number 0 is none
static uint32_t unused, cards_made;
static uint32_t *days;    // the card of each
static Present *heap;
static uint32_t heap_size;
static int64_t days_used, today = -1;
static double begin, length; // of the calendar, of a day
static double lowest, highest; // times of what waits, when a calendar is made
static uint32_t later;       // the card of what lies behind the last day
static uint32_t waiting;     // how many lie there, or in a day that has not come
static uint64_t added, taken, taken_before;

static Event *event_of(uint32_t who)
{
	return (Event *)(void *)(first_event + (size_t)who * step);
}

static double days_for(double count)
{
	double room = 1;
	while (room < count / PER_DAY)
		room *= 2;
	return room;
}

double event_bytes(void)
{
	// No more than two days for PER_DAY events, a card for each; the heap takes a page only when it is used.
	return (2.0 / PER_DAY + 1.0 / ON_CARD) * sizeof *cards + sizeof *heap;
}

void open_events(Event *first, size_t stride, uint32_t count, void (*told)(uint32_t who, int time))
{
	first_event = (char *)first;
	step = stride;
	expect = told;
	days = large_room(days_for(count), sizeof *days);
	cards = large_room(days_for(count) + count / ON_CARD + 3, sizeof *cards);
	heap = large_room(count, sizeof *heap);
}

// -- the present day: a heap of four children a node

static int before(const Present *a, const Present *b)
{
	return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push(Present one)
{
	uint32_t at = heap_size++;
	while (at > 0 && before(&one, &heap[(at - 1) / 4])) {
		heap[at] = heap[(at - 1) / 4];
		at = (at - 1) / 4;
	}
	heap[at] = one;
}

static Present pop(void)
{
	const Present top = heap[0], last = heap[--heap_size];
	uint32_t at = 0;
	for (;;) {
		uint32_t least = 0;
		for (uint32_t child = 4 * at + 1; child <= 4 * at + 4 && child < heap_size; child++)
			if (least == 0 || before(&heap[child], &heap[least]))
				least = child;
		if (least == 0 || !before(&heap[least], &last))
			break;
		heap[at] = heap[least];
		at = least;
	}
	heap[at] = last;
	return top;
}

// -- the calendar

static void note(uint32_t *list, uint32_t who)
{
	if (*list == NONE || cards[*list].count == ON_CARD) {
		const uint32_t card = unused ? unused : ++cards_made;
		unused = unused ? cards[unused].next : NONE;
		cards[card].next = *list;
		cards[card].count = 0;
		*list = card;
	}
	cards[*list].who[cards[*list].count++] = who;
	waiting++;
}

static void enter(uint32_t who, const Event *event)
{
	const double day = (event->time - begin) / length;
	// Not a number before the first calendar is made: 0 / 0.
	if (!(day < (double)days_used))
		note(&later, who);
	else if ((int64_t)day > today)
		note(&days[(int64_t)day], who);
	else
		push((Present){event->time, event->order, who});
}

// Calls with each whose event is on the cards, and puts the cards back.
static void take_cards(uint32_t card, void (*with)(uint32_t who))
{
	while (card != NONE) {
		const Card read = cards[card];
		cards[card].next = unused;
		unused = card;
		for (uint32_t n = 0; n < read.count; n++)
			with(read.who[n]);
		card = read.next;
	}
}

void add_event(uint32_t who, double time)
{
	Event *event = event_of(who);
	event->time = time;
	event->order = added++;
	enter(who, event);
}

// Of a new calendar: a few times what passed between two events in the last one, or, without one, between those there are.
static double day_length(uint32_t count)
{
	const double passed = lowest - begin, since = (double)(taken - taken_before);
	if (since > 0 && passed > 0)
		return PER_DAY * passed / since;
	return highest > lowest ? PER_DAY * (highest - lowest) / count : 1;
}

static void look(uint32_t who)
{
	const double time = event_of(who)->time;
	lowest = time < lowest ? time : lowest;
	highest = time > highest ? time : highest;
}

static void enter_again(uint32_t who)
{
	waiting--;
	enter(who, event_of(who));
}

static void new_calendar(void)
{
	lowest = HUGE_VAL;
	highest = -HUGE_VAL;
	for (uint32_t card = later; card != NONE; card = cards[card].next)
		for (uint32_t n = 0; n < cards[card].count; n++)
			look(cards[card].who[n]);
	length = day_length(waiting);
	begin = lowest;
	taken_before = taken;
	today = -1;
	days_used = (int64_t)days_for(waiting);
	for (int64_t day = 0; day < days_used; day++)
		days[day] = NONE;
	const uint32_t card = later;
	later = NONE;
	take_cards(card, enter_again);
}

static void go_through(int64_t day, int ahead)
{
	if (day >= days_used || days[day] == NONE)
		return;
	const Card *card = &cards[days[day]];
	if (ahead == AHEAD) {
		__builtin_prefetch(card);
		return;
	}
	for (uint32_t n = 0; n < card->count; n++)
		if (ahead == AHEAD - 1)
			__builtin_prefetch(event_of(card->who[n]));
		else
			expect(card->who[n], ahead == 0);
}

static void begin_day(void)
{
	for (int ahead = AHEAD; ahead >= 0; ahead--)
		go_through(today + ahead, ahead);
	const uint32_t card = days[today];
	days[today] = NONE;
	take_cards(card, enter_again);
}

int next_event(uint32_t *who, double *time)
{
	while (heap_size == 0) {
		if (waiting == 0)
			return 0;
		if (++today < days_used)
			begin_day();
		else
			new_calendar();
	}
	const Present found = pop();
	if (heap_size > 0)
		expect(heap[0].who, 2);
	taken++;
	*who = found.who;
	*time = found.time;
	return 1;
}
