// Sieve, a dictionary of words, matrices of doubles.
using System;
using System.Collections.Generic;
using System.Text;

class Work {
    static int Primes(int limit) {
        var composite = new bool[limit + 1];
        int count = 0;
        for (int i = 2; i <= limit; i++) {
            if (composite[i]) continue;
            count++;
            for (long j = (long)i * i; j <= limit; j += i) composite[j] = true;
        }
        return count;
    }

    static int Words(int count) {
        var seen = new Dictionary<string, int>();
        uint state = 2011;
        for (int i = 0; i < count; i++) {
            state = state * 1664525 + 1013904223;
            var word = new StringBuilder().Append((char)('a' + state % 26)).Append(state >> 18).ToString();
            int old; seen.TryGetValue(word, out old); seen[word] = old + 1;
        }
        return seen.Count;
    }

    static double Product(int n) {
        var a = new double[n, n]; var b = new double[n, n]; double sum = 0;
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) { a[i, j] = i + j; b[i, j] = i - j; }
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
            double x = 0;
            for (int k = 0; k < n; k++) x += a[i, k] * b[k, j];
            sum += x;
        }
        return sum;
    }

    static void Main() {
        Console.WriteLine("{0} {1} {2}", Primes(30000000), Words(2500000), Product(420));
    }
}
