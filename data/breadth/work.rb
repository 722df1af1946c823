# Primes, words, matrices and rational numbers: four phases.
def primes(limit)
  flags = Array.new(limit + 1, true)
  (2..Math.sqrt(limit)).each { |i| (i * i).step(limit, i) { |j| flags[j] = false } if flags[i] }
  flags.count(true) - 2
end

def words(lines)
  seen = Hash.new(0)
  lines.times { |i| seen["w#{i * 7919 % 10007}"] += 1 }
  seen.sort_by { |word, count| [-count, word] }.first(3).map(&:first).join(",")
end

def matrix(size)
  a = Array.new(size) { |i| Array.new(size) { |j| ((i * j) % 17) * 0.5 } }
  b = a.transpose
  a.sum { |row| b.sum { |column| row.zip(column).sum { |x, y| x * y } } }
end

def harmonic(terms)
  (1..terms).sum { |i| Rational(1, i) }.numerator.to_s.size
end

puts primes(6_000_000), words(3_000_000), matrix(220), harmonic(6000)
