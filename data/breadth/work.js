// Sorted strings, a spectral norm, and a map of words: three phases.
function strings(count) {
  const made = [];
  for (let i = 0; i < count; i++) made.push(String(i * 7919 % 100003).padStart(6, "0") + ":" + i % 977);
  made.sort();
  return made.join("").length;
}
function norm(n) {
  const a = (i, j) => 1 / ((i + j) * (i + j + 1) / 2 + i + 1);
  let u = new Float64Array(n).fill(1), v = new Float64Array(n);
  for (let turn = 0; turn < 20; turn++) {
    for (let i = 0; i < n; i++) { let t = 0; for (let j = 0; j < n; j++) t += a(i, j) * u[j]; v[i] = t; }
    for (let i = 0; i < n; i++) { let t = 0; for (let j = 0; j < n; j++) t += a(j, i) * v[j]; u[i] = t; }
  }
  return u[0];
}
function words(count) {
  const seen = new Map();
  for (let i = 0; i < count; i++) { const w = "w" + i * 7919 % 10007; seen.set(w, (seen.get(w) || 0) + 1); }
  return seen.size;
}
console.log(strings(700000), norm(3000), words(16000000));
