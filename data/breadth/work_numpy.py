"""A plate, spectra, a dense system, sorting: four phases of numpy."""

import numpy as np

generator = np.random.default_rng(2011)
plate = np.zeros((700, 700))
plate[0] = 1
for _ in range(250):
    plate[1:-1, 1:-1] = 0.25 * (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:])
signal = generator.standard_normal(1 << 19)
for _ in range(14):
    signal = np.fft.irfft(np.fft.rfft(signal) * np.exp(-np.arange((1 << 18) + 1) / 1e6))
matrix = generator.standard_normal((600, 600)) + 60 * np.eye(600)
for _ in range(14):
    solution = np.linalg.solve(matrix, np.ones(600))
values = generator.integers(0, 1 << 40, 2_000_000)
for _ in range(4):
    order = np.sort(values ^ 0x5DEECE66D)
print(plate.sum(), signal[3], solution.sum(), order[17])
