<?php
// Fannkuch, strings, a sorted table, and a fractal: four phases.
function fannkuch(int $n): int {
    $p = range(0, $n - 1); $count = array_fill(0, $n, 0); $most = 0; $r = $n;
    while (true) {
        while ($r != 1) { $count[$r - 1] = $r; $r--; }
        $q = $p; $flips = 0;
        while (($k = $q[0]) != 0) {
            for ($i = 0, $j = $k; $i < $j; $i++, $j--) { $t = $q[$i]; $q[$i] = $q[$j]; $q[$j] = $t; }
            $flips++;
        }
        if ($flips > $most) $most = $flips;
        while (true) {
            if ($r == $n) return $most;
            $first = $p[0];
            for ($i = 0; $i < $r; $i++) $p[$i] = $p[$i + 1];
            $p[$r] = $first;
            if (--$count[$r] > 0) break;
            $r++;
        }
    }
}
function strings(int $lines): int {
    $made = [];
    for ($i = 0; $i < $lines; $i++) $made[] = sprintf("%06d:%s", $i * 7919 % 100003, md5((string)$i));
    sort($made);
    return strlen(str_replace("00", "-", implode("\n", $made)));
}
function fractal(int $size): int {
    $inside = 0;
    for ($y = 0; $y < $size; $y++) for ($x = 0; $x < $size; $x++) {
        $cr = 2.0 * $x / $size - 1.5; $ci = 2.0 * $y / $size - 1.0; $zr = $zi = 0.0;
        for ($i = 0; $i < 50 && $zr * $zr + $zi * $zi < 4; $i++) { $t = $zr * $zr - $zi * $zi + $cr; $zi = 2 * $zr * $zi + $ci; $zr = $t; }
        if ($i == 50) $inside++;
    }
    return $inside;
}
echo fannkuch(9), " ", strings(1500000), " ", fractal(800), "\n";
