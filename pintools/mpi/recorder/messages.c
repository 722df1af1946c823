// SPDX-License-Identifier: Apache-2.0
//
// Data that a call brings, in pieces behind the address that it was given; hashes of data that it sends.

typedef struct {
	int64_t at, count;
	MPI_Datatype type;
} Piece;

typedef struct {
	const char *base;
	int count, room;
	Piece *pieces;
} Plan;

static Plan plan;

static void add(int64_t at, int64_t count, MPI_Datatype type)
{
	if (plan.count == plan.room)
		plan.pieces = grown(plan.pieces, (size_t)(plan.room = plan.room * 2 + 8) * sizeof *plan.pieces);
	plan.pieces[plan.count++] = (Piece){at, count, type};
}

static void begin_plan(const void *base)
{
	plan.base = base;
	plan.count = 0;
}

// bytes: at most so many, as a status says.
static void put_piece(const char *base, const Piece *piece, int64_t most)
{
	if (piece->count <= 0 || piece->type == MPI_DATATYPE_NULL) {
		const int64_t none[] = {0, 0, 0};
		put_bytes(none, sizeof none);
		return;
	}
	const Layout found = *layout_of(piece->type);
	int64_t bytes = piece->count * found.size;
	bytes = most >= 0 && most < bytes ? most : bytes;
	const char *from = base + piece->at;
	put_int(piece->at);
	put_int(bytes);
	put_int(found.number);
	if (bytes > 0 && base == NULL)
		refuse("a message comes to MPI_BOTTOM, which is not recorded");
	if (found.number == 0) {
		put_bytes(from, (size_t)bytes);
		return;
	}
	const size_t begun = record.used;
	for (int64_t left = bytes; left > 0; from += found.extent)
		for (size_t n = 0; n < found.runs && left > 0; n++) {
			const int64_t some = (int64_t)found.run[n].bytes < left ? (int64_t)found.run[n].bytes : left;
			append(&record, from + found.run[n].at, (size_t)some);
			left -= some;
		}
	append(&record, "\0\0\0\0\0\0\0", padded(record.used - begun) - (record.used - begun));
}

static void put_plan(const Plan *from, int64_t most)
{
	if (!contents)
		return;
	put_int(from->count);
	for (int n = 0; n < from->count; n++)
		put_piece(from->base, &from->pieces[n], most);
}

// What a call sends: its place is known where it is replayed, so a hash and the layout are enough.
static void put_sent(const void *data, int64_t count, MPI_Datatype type)
{
	if (!contents)
		return;
	const int nothing = data == MPI_IN_PLACE || data == NULL || count <= 0 || type == MPI_DATATYPE_NULL;
	const Layout found = nothing ? (Layout){0} : *layout_of(type);
	int64_t left = nothing ? 0 : count * found.size;
	uint64_t hash = 0;
	put_int(left);
	put_int(found.number);
	if (found.number == 0)
		hash = mixed(hash, data, (uint64_t)left);
	else
		for (const char *from = data; left > 0; from += found.extent)
			for (size_t n = 0; n < found.runs && left > 0; n++) {
				hash = mixed(hash, from + found.run[n].at, found.run[n].bytes);
				left -= (int64_t)found.run[n].bytes;
			}
	put_int((int64_t)hash);
}
