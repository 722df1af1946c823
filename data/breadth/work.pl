# Words by length, a sieve in a string, and numbers sorted in two ways.
use strict; use warnings;
my (%seen, %lengths);
open my $text, '<', $ARGV[0] or die "$ARGV[0]: $!";
while (my $line = <$text>) {
    for my $word (split ' ', $line) { $seen{lc $word}++; $lengths{length $word}{substr $word, 0, 1}++ }
}
my $sieve = '1' x 4_000_000;
for my $i (2 .. 2000) {
    next unless substr $sieve, $i, 1;
    for (my $j = $i * $i; $j < 4_000_000; $j += $i) { substr $sieve, $j, 1, '0' }
}
my @numbers = map { $_ * 7919 % 1000003 } 1 .. 400_000;
my @sorted = sort { $a <=> $b } @numbers;
my @texts = sort map { "n$_" } @numbers;
print join(' ', scalar(keys %seen), ($sieve =~ tr/1//), $sorted[1000], $texts[1000]), "\n";
