// SPDX-License-Identifier: Apache-2.0
//
// Texts of hints that a program asks for.

int MPI_Info_get(MPI_Info info, const char *key, int room, char *value, int *is_set)
{
	int length;
	(void)info, (void)key, (void)room;
	const int result = take(F_Info_get);
	*is_set = (int)get_int();
	if (*is_set)
		get_text(value, &length);
	return result;
}

int MPI_Info_get_nthkey(MPI_Info info, int number, char *key)
{
	int length;
	(void)info, (void)number;
	const int result = take(F_Info_get_nthkey);
	get_text(key, &length);
	return result;
}
