# Collatz lengths, dictionaries, and a life of cells: three phases.
proc collatz {limit} {
  set best 0
  for {set i 1} {$i < $limit} {incr i} {
    set n $i; set steps 0
    while {$n != 1} { if {$n & 1} {set n [expr {3 * $n + 1}]} else {set n [expr {$n >> 1}]}; incr steps }
    if {$steps > $best} {set best $steps}
  }
  return $best
}
proc words {count} {
  set seen [dict create]
  for {set i 0} {$i < $count} {incr i} { dict incr seen w[expr {$i * 7919 % 10007}] }
  return [llength [lsort -integer [dict values $seen]]]
}
proc life {size turns} {
  for {set i 0} {$i < $size * $size} {incr i} { lappend cells [expr {$i * 7919 % 10 < 3}] }
  for {set t 0} {$t < $turns} {incr t} {
    set next {}
    for {set i 0} {$i < $size * $size} {incr i} {
      set near 0
      foreach d [list -1 1 -$size $size] { set c [lindex $cells [expr {($i + $d) % ($size * $size)}]]; incr near $c }
      lappend next [expr {$near == 2 || ($near == 3 && [lindex $cells $i])}]
    }
    set cells $next
  }
  return [tcl::mathop::+ {*}$cells]
}
puts "[collatz 220000] [words 3000000] [life 120 90]"
