# Words, their lengths, and sums of the numbers in a text.
{
  for (i = 1; i <= NF; i++) {
    if ($i ~ /^-?[0-9.]+$/) { sum += $i; numbers++ }
    else { seen[$i]++; lengths[length($i)]++ }
  }
  if (NR % 5 == 0) { line = $0; gsub(/[aeiou]/, "*", line); stars += split(line, parts, "*") }
}
END {
  for (word in seen) if (seen[word] > most) { most = seen[word]; best = word }
  printf "%d words, %d numbers, sum %.3f, %d stars, most often %s\n", length(seen), numbers, sum, stars, best
}
