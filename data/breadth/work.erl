#!/usr/bin/env escript
%% Queens on a board and a map of words.
main(_) -> io:format("~p ~p~n", [queens(8), words(600000, #{})]).
queens(N) -> length(place(N, lists:seq(1, N), [])).
place(_, [], Placed) -> [Placed];
place(N, Left, Placed) -> [S || Q <- Left, safe(Q, 1, Placed), S <- place(N, Left -- [Q], [Q | Placed])].
safe(_, _, []) -> true;
safe(Q, D, [P | Ps]) -> Q =/= P + D andalso Q =/= P - D andalso safe(Q, D + 1, Ps).
words(0, Seen) -> maps:size(Seen);
words(N, Seen) -> words(N - 1, maps:update_with(N * 7919 rem 10007, fun(C) -> C + 1 end, 1, Seen)).
