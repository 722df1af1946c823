// SPDX-License-Identifier: Apache-2.0
//
// Texts of hints that a program asks for.

int MPI_Info_get(MPI_Info info, const char *key, int room, char *value, int *is_set)
{
	if (!enter(SITE))
		return PMPI_Info_get(info, key, room, value, is_set);
	const int result = PMPI_Info_get(info, key, room, value, is_set);
	put_result(result);
	put_int(*is_set);
	if (*is_set)
		put_text(value);
	leave(F_Info_get);
	return result;
}

int MPI_Info_get_nthkey(MPI_Info info, int number, char *key)
{
	if (!enter(SITE))
		return PMPI_Info_get_nthkey(info, number, key);
	const int result = PMPI_Info_get_nthkey(info, number, key);
	put_result(result);
	put_text(key);
	leave(F_Info_get_nthkey);
	return result;
}
