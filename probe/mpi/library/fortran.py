# SPDX-License-Identifier: Apache-2.0
"""Generator of wrappers for Fortran: MPI libraries' own pass wrappers in C by.

The recorder and the replayer define the macros FROM_* and TO_*, which turn handles of Fortran into those of C and back.
"""

from __future__ import annotations

from collections.abc import Iterator

from probe.mpi.library.calls import (
    BY_HAND,
    LOCAL,
    NEW_COMMUNICATORS,
    PERSISTENT_SENDS,
    PROBES,
    SENDS,
    Argument,
    Call,
    collectives,
)
from probe.mpi.library.calls import calls as calls_of

_HANDLES = {
    "comm": "MPI_Comm", "type": "MPI_Datatype", "group": "MPI_Group", "op": "MPI_Op", "info": "MPI_Info",
    "errhandler": "MPI_Errhandler", "request": "MPI_Request", "message": "MPI_Message",
}  # fmt: skip

_PLAIN = {
    "in": ("void *{}", "choice({})"), "out": ("void *{}", "choice({})"), "int": ("MPI_Fint *{}", "*{}"),
    "aint": ("MPI_Aint *{}", "*{}"), "ints": ("MPI_Fint *{}", "{}"), "flags": ("MPI_Fint *{}", "{}"),
    "aints": ("MPI_Aint *{}", "{}"), "+int": ("MPI_Fint *{}", "{}"), "=int": ("MPI_Fint *{}", "{}"),
    "+length": ("MPI_Fint *{}", "{}"), "+aint": ("MPI_Aint *{}", "{}"), "+count": ("MPI_Count *{}", "{}"),
    "ranges": ("MPI_Fint *{}", "(int (*)[3]){}"),
    "+ints": ("MPI_Fint *{}", "{}"), "+index": ("MPI_Fint *{}", "{}"), "+indices": ("MPI_Fint *{}", "{}"),
}  # fmt: skip
"""Kind: the parameter of the wrapper, and what it hands to the call in C."""


class _Wrapper:
    """The wrapper of one call, put together argument by argument."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.parameters: list[str] = []
        self.lengths: list[str] = []
        self.before: list[str] = []
        self.given: list[str] = []
        self.after: list[str] = []
        self.freed: list[str] = []
        for argument in call.arguments:
            self._add(argument)

    def _add(self, argument: Argument) -> None:
        kind, name = argument.kind, argument.name
        if kind.lstrip("+-=") in _HANDLES:
            self._add_handle(kind, name)
        elif kind in _PLAIN:
            parameter, given = _PLAIN[kind]
            self.parameters.append(parameter.format(name))
            self.given.append(given.format(name))
            self._add_places(kind, name)
        else:
            getattr(self, f"_add_{kind.lstrip('=+')}")(argument)

    def _add_handle(self, kind: str, name: str) -> None:
        which, of = kind.lstrip("+-="), _HANDLES[kind.lstrip("+-=")]
        self.parameters.append(f"MPI_Fint *{name}")
        if kind == which:
            self.given.append(f"FROM_{which.upper()}(*{name})")
            return
        # A call that finds nothing may leave its handle alone.
        first = f"{of.upper()}_NULL" if kind[0] == "+" else f"FROM_{which.upper()}(*{name})"
        self.before.append(f"{of} {name}_in_c = {first};")
        self.given.append(f"&{name}_in_c")
        self.after.append(f"*{name} = TO_{which.upper()}({name}_in_c);")

    def _add_places(self, kind: str, name: str) -> None:
        """Fortran counts places in arrays from one."""
        if kind == "+index":
            self.after.append(f"if (*{name} != MPI_UNDEFINED) ++*{name};")
        elif kind == "+indices":
            self.after.append(f"for (int k = 0; *done != MPI_UNDEFINED && k < *done; k++) ++{name}[k];")

    def _add_types(self, argument: Argument) -> None:
        self._add_array(argument.name, "n", "type", back=False)

    def _add_requests(self, argument: Argument) -> None:
        self._add_array(argument.name, argument.length, "request", back=True)

    def _add_array(self, name: str, length: str, which: str, *, back: bool) -> None:
        of = _HANDLES[which]
        self.parameters.append(f"MPI_Fint *{name}")
        self.before += [
            f"{of} *{name}_in_c = malloc((size_t)*{length} * sizeof *{name}_in_c + 1);",
            f"for (int k = 0; k < *{length}; k++) {name}_in_c[k] = FROM_{which.upper()}({name}[k]);",
        ]
        self.given.append(f"{name}_in_c")
        if back:
            self.after.append(f"for (int k = 0; k < *{length}; k++) {name}[k] = TO_{which.upper()}({name}_in_c[k]);")
        self.freed.append(f"free({name}_in_c);")

    def _add_status(self, argument: Argument) -> None:
        name = argument.name
        self.parameters.append(f"MPI_Fint *{name}")
        self.before += [
            "MPI_Status own;",
            f"const int ignored = ignores_status({name});",
            f"if (!ignored) memcpy(&own, {name}, sizeof own);",
        ]
        self.given.append("ignored ? MPI_STATUS_IGNORE : &own")
        self.after.append(f"if (!ignored) memcpy({name}, &own, sizeof own);")

    def _add_const_status(self, argument: Argument) -> None:
        self.parameters.append(f"MPI_Fint *{argument.name}")
        self.before.append(f"MPI_Status own; memcpy(&own, {argument.name}, sizeof own);")
        self.given.append("&own")

    def _add_statuses(self, argument: Argument) -> None:
        name, length = argument.name, argument.length
        self.parameters.append(f"MPI_Fint *{name}")
        self.before += [
            f"const size_t bytes = (size_t)*{length} * sizeof(MPI_Status);",
            "MPI_Status *own = malloc(bytes + 1);",
            f"const int ignored = ignores_statuses({name});",
            f"if (!ignored) memcpy(own, {name}, bytes);",
        ]
        self.given.append("ignored ? MPI_STATUSES_IGNORE : own")
        self.after.append(f"if (!ignored) memcpy({name}, own, bytes);")
        self.freed.append("free(own);")

    def _add_text(self, argument: Argument) -> None:
        """Text that is returned: filled with blanks to the length that Fortran hands over behind all arguments."""
        name = argument.name
        if argument.kind == "text":
            self._add_given_text(name)
            return
        self.parameters.append(f"char *{name}")
        self.lengths.append(f"size_t {name}_room")
        self.before.append(f"char {name}_in_c[MPI_MAX_LIBRARY_VERSION_STRING + MPI_MAX_ERROR_STRING];")
        self.given.append(f"{name}_in_c")
        self.after += [
            f"memset({name}, ' ', {name}_room);",
            f"memcpy({name}, {name}_in_c, (size_t)*n < {name}_room ? (size_t)*n : {name}_room);",
        ]

    def _add_given_text(self, name: str) -> None:
        self.parameters.append(f"char *{name}")
        self.lengths.append(f"size_t {name}_room")
        self.before += [
            f"char {name}_in_c[4096];",
            f"while ({name}_room > 0 && ({name}_room >= sizeof {name}_in_c || {name}[{name}_room - 1] == ' ')) "
            f"{name}_room--;",
            f"memcpy({name}_in_c, {name}, {name}_room);",
            f"{name}_in_c[{name}_room] = 0;",
        ]
        self.given.append(f"{name}_in_c")

    def text(self) -> str:
        """The wrapper in C."""
        parameters = ", ".join([*self.parameters, "MPI_Fint *error", *self.lengths])
        body = "\n\t".join([*self.before, "FROM_FORTRAN();", self._made(), *self.after, *self.freed])
        return f"\nvoid mpi_{self.call.name.lower()}_({parameters})\n{{\n\t{body}\n}}"

    def _made(self) -> str:
        return f"*error = MPI_{self.call.name}({', '.join(self.given)});"


def conversions() -> Iterator[str]:
    """Functions that turn handles of Fortran into those of C and back. Some libraries have macros of their names."""
    for kind, of in _HANDLES.items():
        name, macro = f"MPI_{kind.capitalize()}", kind.upper()
        yield f"\n{of} ({name}_f2c)(MPI_Fint number)\n{{\n\treturn FROM_{macro}(number);\n}}"
        yield f"\nMPI_Fint ({name}_c2f)({of} handle)\n{{\n\treturn TO_{macro}(handle);\n}}"


def fortran() -> Iterator[str]:
    """Wrappers of all calls that Fortran can make, but of those with functions of the program's, or many types."""
    tables = (LOCAL, SENDS, PERSISTENT_SENDS, PROBES, NEW_COMMUNICATORS, BY_HAND)
    found = [call for table in tables for call in calls_of(table)] + [one.call for one in collectives()]
    for call in found:
        if not any(argument.kind in ("function", "handler", "each") for argument in call.arguments):
            yield _Wrapper(call).text()
    yield _OTHERS


_OTHERS = """
double mpi_wtime_(void)
{
	FROM_FORTRAN();
	return MPI_Wtime();
}

double mpi_wtick_(void)
{
	FROM_FORTRAN();
	return MPI_Wtick();
}

void mpi_abort_(MPI_Fint *comm, MPI_Fint *status, MPI_Fint *error)
{
	*error = MPI_Abort(FROM_COMM(*comm), *status);
}
"""
