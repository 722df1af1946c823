// SPDX-License-Identifier: Apache-2.0
//
// Layouts: which bytes of memory a type covers.

typedef struct {
	MPI_Datatype type;
	uint32_t number;
	int64_t size, extent;
	size_t runs;
	Run *run;
} Layout;

static Layout *layouts;
static size_t layouts_used;
static uint32_t layouts_made;

// Packs an instance whose bytes name their own places: four passes, one for each byte of the place. So MPI itself tells
// the layout of whatever constructors made the type.
static void find_runs(Layout *found, int64_t true_lower, int64_t span)
{
	char *place = grown(NULL, (size_t)span), *packed = grown(NULL, (size_t)found->size);
	uint32_t *offset = grown(NULL, (size_t)found->size * sizeof *offset);
	memset(offset, 0, (size_t)found->size * sizeof *offset);
	for (int pass = 0; pass < 4; pass++) {
		int at = 0;
		for (int64_t n = 0; n < span; n++)
			place[n] = (char)((uint64_t)n >> (8 * pass));
		PMPI_Pack(place - true_lower, 1, found->type, packed, (int)found->size, &at, MPI_COMM_SELF);
		for (int64_t n = 0; n < found->size; n++)
			offset[n] |= (uint32_t)(unsigned char)packed[n] << (8 * pass);
	}
	for (int64_t n = 0; n < found->size; n++) {
		Run *last = found->runs > 0 ? &found->run[found->runs - 1] : NULL;
		const int64_t at = (int64_t)offset[n] + true_lower;
		if (last != NULL && last->at + (int64_t)last->bytes == at) {
			last->bytes++;
			continue;
		}
		if ((found->runs & (found->runs - 1)) == 0)
			found->run = grown(found->run, (found->runs ? found->runs * 2 : 1) * sizeof *found->run);
		found->run[found->runs++] = (Run){at, 1};
	}
	free(place);
	free(packed);
	free(offset);
}

static void write_layout(const Layout *found)
{
	const uint64_t head[] = {found->number, (uint64_t)found->extent, found->runs};
	Stream made = {0};
	append(&made, head, sizeof head);
	append(&made, found->run, found->runs * sizeof *found->run);
	add_record(LAYOUT, made.data, made.used);
	free(made.data);
}

// number 0: `size` bytes from the address on, one instance behind the other.
static Layout *layout_of(MPI_Datatype type)
{
	MPI_Count size, lower, extent, true_lower, span;
	for (size_t n = 0; n < layouts_used; n++)
		if (layouts[n].type == type)
			return &layouts[n];
	PMPI_Type_size_x(type, &size);
	PMPI_Type_get_extent_x(type, &lower, &extent);
	PMPI_Type_get_true_extent_x(type, &true_lower, &span);
	if ((layouts_used & (layouts_used - 1)) == 0)
		layouts = grown(layouts, (layouts_used ? layouts_used * 2 : 1) * sizeof *layouts);
	Layout *found = &layouts[layouts_used++];
	*found = (Layout){.type = type, .size = size, .extent = extent};
	if (size == 0 || (size == extent && true_lower == 0 && span == size))
		return found;
	if (span > MOST_SPAN || size > MOST_PACKED)
		refuse("a datatype reaches over more than 1 GB (absolute addresses?), which is not recorded");
	find_runs(found, true_lower, span);
	found->number = ++layouts_made;
	if (contents)
		write_layout(found);
	return found;
}

static void forget_layout(MPI_Datatype type)
{
	for (size_t n = 0; n < layouts_used; n++)
		if (layouts[n].type == type) {
			free(layouts[n].run);
			layouts[n--] = layouts[--layouts_used];
		}
}

static int64_t size_of(MPI_Datatype type)
{
	MPI_Count size = 0;
	if (type != MPI_DATATYPE_NULL)
		PMPI_Type_size_x(type, &size);
	return size;
}

static int64_t extent_of(MPI_Datatype type)
{
	MPI_Aint lower, extent;
	PMPI_Type_get_extent(type, &lower, &extent);
	return extent;
}
