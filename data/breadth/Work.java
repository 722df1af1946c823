/** Sorted strings, a sieve, and a map of words. */
public class Work {
    public static void main(String[] arguments) {
        var made = new java.util.ArrayList<String>();
        for (int i = 0; i < 1_500_000; i++) made.add(String.format("%06d", i * 7919L % 100003));
        java.util.Collections.sort(made);
        var flags = new boolean[30_000_000];
        int primes = 0;
        for (int i = 2; i < flags.length; i++)
            if (!flags[i]) { primes++; for (long j = (long) i * i; j < flags.length; j += i) flags[(int) j] = true; }
        var seen = new java.util.HashMap<String, Integer>();
        for (int i = 0; i < 6_000_000; i++) seen.merge("w" + i * 7919L % 10007, 1, Integer::sum);
        System.out.println(made.get(1000) + " " + primes + " " + seen.size());
    }
}
