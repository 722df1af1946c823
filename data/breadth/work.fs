\ A sieve, Fibonacci numbers, and sorted cells: three phases.
4000000 constant size
create flags size allot
: sieve ( -- n ) flags size 1 fill 0 size 2 do flags i + c@ if 1+ i dup * size < if size i dup * do
  0 flags i + c! j +loop then then loop ;
: fib ( n -- f ) dup 2 < if drop 1 else dup 1- recurse swap 2 - recurse + then ;
60000 constant cells#
create values cells# cells allot
: fill-values cells# 0 do i 7919 * 100003 mod values i cells + ! loop ;
: sift ( i -- ) dup cells values + @ swap begin dup 0> if 2dup 1- cells values + @ < else false then while
  dup 1- cells values + @ over cells values + ! 1- repeat cells values + ! ;
: sorted 7000 1 do i sift loop ;
sieve . 38 fib . fill-values sorted values @ . cr bye
