# SPDX-License-Identifier: Apache-2.0
# Counts the words and the pairs of words of its files, then ranks them.
# Usage: words.pl FILE...
use strict;
use warnings;

my (%count, %after, $previous, $digits);
while (my $line = <>) {
    $digits += length $1 while $line =~ /(\d+)/g;
    for my $word ($line =~ /([a-z]+)/g) {
        $count{$word}++;
        $after{"$previous $word"}++ if defined $previous;
        $previous = $word;
    }
}
my @common = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
my @pairs = sort { $after{$b} <=> $after{$a} || $a cmp $b } keys %after;
my $total = 0;
for my $i (0 .. $#pairs) {
    $total = ($total * 31 + length($pairs[$i]) * $i) % 1000003;
}
print "$digits @common[0 .. 9] $pairs[0] $total\n";
