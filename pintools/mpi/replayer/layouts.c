// SPDX-License-Identifier: Apache-2.0
//
// Layouts: which bytes of memory a type covers.

typedef struct {
	int64_t extent;
	size_t runs;
	Run *run;
} Layout;

static Layout *layouts;
static size_t layouts_room;

static void learn_layout(void)
{
	const uint64_t number = (uint64_t)get_int();
	const int64_t extent = get_int();
	const uint64_t runs = (uint64_t)get_int();
	if (number > UINT32_MAX || runs > (size_t)(end - at) / sizeof(Run))
		stop("a layout of the recording is damaged");
	if (number >= layouts_room) {
		const size_t room = number * 2 + FIRST_LAYOUTS;
		layouts = realloc(layouts, room * sizeof *layouts);
		if (layouts == NULL)
			stop("no memory for the layouts of the recording");
		memset(layouts + layouts_room, 0, (room - layouts_room) * sizeof *layouts);
		layouts_room = room;
	}
	Layout *made = &layouts[number];
	*made = (Layout){extent, runs, malloc(runs * sizeof(Run) + 1)};
	if (made->run == NULL)
		stop("no memory for the layouts of the recording");
	memcpy(made->run, at, runs * sizeof(Run));
	for (size_t n = 0; n < runs; n++)
		if (made->run[n].bytes == 0)
			stop("a layout of the recording is damaged");
}

static const Layout *layout(int64_t number)
{
	if (number <= 0 || (uint64_t)number >= layouts_room || layouts[number].runs == 0)
		stop("the recording names a layout that it does not have");
	return &layouts[number];
}
