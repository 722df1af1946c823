# SPDX-License-Identifier: Apache-2.0
"""Generator of the recorder's and the replayer's wrappers in C, from the table of MPI's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from probe.mpi.library.calls import (
    LOCAL,
    NEW_COMMUNICATORS,
    PERSISTENT_SENDS,
    PROBES,
    SENDS,
    Argument,
    Call,
    Collective,
    calls,
    collectives,
    names,
)
from probe.mpi.library.fortran import conversions, fortran

SOURCES = Path(__file__).parents[3] / "pintools" / "mpi"

RECORDER = (
    "state", "refusal", "threads", "spool", "parts", "answers", "layouts", "messages", "communicators", "calls",
    "requests", "point_to_point", "matching", "completion", "freed_handles", "packing", "clock", "info", "attributes",
    "gathering", "lifetime", "fortran",
)  # fmt: skip
"""Files of pintools/mpi/recorder, in an order in which each finds what it uses."""

REPLAYER = (
    "state", "refusal", "parts", "layouts", "messages", "handles", "requests", "point_to_point", "matching",
    "completion", "attributes", "freed_handles", "packing", "clock", "info", "lifetime", "fortran",
)  # fmt: skip
"""Files of pintools/mpi/replayer, likewise."""

HANDLES = {
    "comm": ("MPI_Comm", "MPI_COMM_NULL"), "type": ("MPI_Datatype", "MPI_DATATYPE_NULL"),
    "group": ("MPI_Group", "MPI_GROUP_NULL"), "op": ("MPI_Op", "MPI_OP_NULL"), "info": ("MPI_Info", "MPI_INFO_NULL"),
    "errhandler": ("MPI_Errhandler", "MPI_ERRHANDLER_NULL"), "request": ("MPI_Request", "MPI_REQUEST_NULL"),
    "message": ("MPI_Message", "MPI_MESSAGE_NULL"),
}  # fmt: skip
"""Kind of a handle: its C type, and the constant that is none."""

_TYPES = {
    "in": "const void *{}", "out": "void *{}", "int": "int {}", "aint": "MPI_Aint {}", "ints": "const int {}[]",
    "flags": "const int {}[]", "aints": "const MPI_Aint {}[]", "types": "const MPI_Datatype {}[]",
    "text": "const char *{}", "function": "MPI_User_function *{}", "handler": "MPI_Comm_errhandler_function *{}",
    "ranges": "int {}[][3]", "each": "const MPI_Datatype {}[]", "status": "MPI_Status *{}",
    "const_status": "const MPI_Status *{}", "+int": "int *{}", "+length": "int *{}", "+aint": "MPI_Aint *{}",
    "+count": "MPI_Count *{}", "+ints": "int {}[]", "+text": "char *{}",
}  # fmt: skip


def recorder_source() -> str:
    """The whole source of the recorder: numbers of the calls, the format, calls by hand, calls of the table."""
    return "\n".join([*_head(), *_texts("recorder", RECORDER), *_recorded(), *fortran(), _text("deprecated.c")])


def replayer_source() -> str:
    """The whole source of the replayer."""
    shared = _text("deprecated.c"), _text("passed.c")
    return "\n".join([*_head(), *_texts("replayer", REPLAYER), *_replayed(), *fortran(), *conversions(), *shared])


def player_source() -> str:
    """The whole source of the player."""
    return "\n".join([*_head(), *map(_text, ("costs.c", "steps.c", "trees.c", "collectives.c", "player.c"))])


def _texts(folder: str, files: Iterable[str]) -> Iterator[str]:
    return (_text(f"{folder}/{name}.c") for name in files)


def _text(name: str) -> str:
    return f'#line 1 "{name}"\n{(SOURCES / name).read_text()}'


def _head() -> Iterator[str]:
    yield "#define _GNU_SOURCE"
    found = names()
    yield "enum { " + ", ".join(f"F_{name}" for name in found) + ", F_COUNT };"
    quoted = ", ".join(f'"MPI_{name}"' for name in found)
    yield f"__attribute__((unused)) static const char *const function_names[] = {{{quoted}}};"
    yield _text("recording.h")


def parameters(call: Call) -> str:
    """The parameters of a call's prototype in C."""
    return ", ".join(_parameter(argument) for argument in call.arguments) or "void"


def _parameter(argument: Argument) -> str:
    kind = argument.kind
    if kind.lstrip("+-=") in HANDLES:
        star = "*" if kind[0] in "+-=" else ""
        return f"{HANDLES[kind.lstrip('+-=')][0]} {star}{argument.name}"
    return _TYPES[kind].format(argument.name)


def _names(call: Call) -> str:
    return ", ".join(argument.name for argument in call.arguments)


# -- recorder


def _recorded() -> Iterator[str]:
    yield _ADD_ALL
    for call in calls(LOCAL):
        yield _recorder(call, "")
    for call in calls(SENDS):
        yield _recorder(call, _sent(call) + ("track(*r, SENDING);" if _starts(call) else ""))
    for call in calls(PERSISTENT_SENDS):
        sending = f"noted.function = F_{_PLAIN[call.name]};"
        yield _recorder(call, f"{_noted_send()} {sending} persist(track(*r, SENDING));")
    for call in calls(PROBES):
        yield _recorder(call, "")
    for call in calls(NEW_COMMUNICATORS):
        yield _recorder(call, "note_members(c, *made);")
    for one in collectives():
        yield _recorder(one.call, _collective(one))


_PLAIN = {"Send_init": "Isend", "Ssend_init": "Issend", "Bsend_init": "Ibsend", "Rsend_init": "Irsend"}

_ADD_ALL = """
static void add_all(const int counts[], const int places[], MPI_Datatype type, int ranks)
{
	const int64_t extent = extent_of(type);
	for (int n = 0; n < ranks; n++)
		add(places[n] * extent, counts[n], type);
}
"""


def _starts(call: Call) -> bool:
    return any(argument.kind == "+request" for argument in call.arguments)


def _noted_send() -> str:
    return "note(world_of(c, dest), tag, c, n, t, -1);"


def _sent(call: Call) -> str:
    return f"{_noted_send()} put_sent(b, n, t);"


def _collective(one: Collective) -> str:
    lines = ["const int me = comm_of(c)->rank, ranks = comm_of(c)->size; (void)me; (void)ranks;"]
    count, kind, root = one.noted.rsplit(", ", 2) if one.noted else ("0", "MPI_BYTE", "-1")
    lines.append(f"note(-1, -1, c, {count}, {kind}, {root}); {one.extra}")
    if one.sent:
        condition, data, count, kind = one.sent.split(", ", 3)
        lines.append(f"put_sent({condition} ? {data} : NULL, {count}, {kind});")
    lines.append(f"begin_plan({one.base or 'NULL'}); {one.got}")
    lines.append("track(*request, COLLECTIVE);" if _starts(one.call) else "put_plan(&plan, -1);")
    return "\n\t".join(lines)


def _recorder(call: Call, body: str) -> str:
    puts = " ".join(filter(None, (_put(argument) for argument in call.arguments)))
    return f"""
int MPI_{call.name}({parameters(call)})
{{
	if (!enter(SITE))
		return PMPI_{call.name}({_names(call)});
	const int result = PMPI_{call.name}({_names(call)});
	put_result(result);
	{puts}
	{body}
	leave(F_{call.name});
	return result;
}}"""


def _put(argument: Argument) -> str:
    kind, name = argument.kind, argument.name
    if kind in ("+int", "+aint", "+count"):
        return f"put_int(*{name});"
    if kind == "+ints":
        return f"put_ints({name}, {argument.length});"
    if kind == "+text":
        return f"put_text({name});"
    if kind == "status":
        return f"if ({name} != MPI_STATUS_IGNORE) put_status({name});"
    if kind[0] == "+" and kind[1:] in HANDLES and kind != "+request":
        return f"put_int(*{name} != {HANDLES[kind[1:]][1]});"
    return ""


# -- replayer


def _replayed() -> Iterator[str]:
    for call in calls(LOCAL + PROBES + NEW_COMMUNICATORS):
        copies = call.name in _COPIES
        before = "const int begun = copy_attributes(c);" if copies else ""
        yield _replayer(call, "set_copies(*made, begun);" if copies else "", before)
    for call in calls(SENDS):
        yield _replayer(call, "check_sent(b);" + (" *r = TO_NEW_REQUEST(NULL);" if _starts(call) else ""))
    for call in calls(PERSISTENT_SENDS):
        yield _replayer(call, "*r = TO_NEW_PERSISTENT(NULL);")
    for one in collectives():
        yield _replayer(one.call, _answered(one))


_COPIES = ("Comm_dup", "Comm_dup_with_info")
"""Calls that copy a communicator's attributes."""


def _answered(one: Collective) -> str:
    lines = [f"check_sent({one.sent.split(', ')[1]});"] if one.sent else []
    base = one.base or "NULL"
    lines.append(f"*request = TO_NEW_REQUEST({base});" if _starts(one.call) else f"deliver({base});")
    return "\n\t".join(lines)


def _replayer(call: Call, body: str, before: str = "") -> str:
    gets = " ".join(filter(None, (_get(argument) for argument in call.arguments)))
    unused = " ".join(f"(void){argument.name};" for argument in call.arguments)
    return f"""
int MPI_{call.name}({parameters(call)})
{{
	{unused}
	{before}
	const int result = take(F_{call.name});
	{gets}
	{body}
	return result;
}}"""


_GETS: dict[str, Callable[[Argument], str]] = {
    "+int": lambda one: f"*{one.name} = (int)get_int();",
    "+aint": lambda one: f"*{one.name} = (MPI_Aint)get_int();",
    "+count": lambda one: f"*{one.name} = (MPI_Count)get_int();",
    "+ints": lambda one: f"get_ints({one.name}, {one.length});",
    "+text": lambda one: f"get_text({one.name}, n);",
    "status": lambda one: f"if ({one.name} != MPI_STATUS_IGNORE) get_status({one.name});",
}


def _get(argument: Argument) -> str:
    kind, name = argument.kind, argument.name
    if kind in _GETS:
        return _GETS[kind](argument)
    if kind[0] not in "+-" or kind[1:] not in HANDLES or kind == "+request":
        return ""
    handle, none = HANDLES[kind[1:]]
    if kind[0] == "-":
        return f"*{name} = {none};"
    return f"*{name} = get_int() ? HANDLE({handle}, new_number()) : {none};"
