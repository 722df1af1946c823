% Heat on a plate, a spectrum, a dense system and a loop of scalars.
n = 220; plate = zeros(n); plate(1, :) = 1;
for step = 1:700
  plate(2:end-1, 2:end-1) = 0.25 * (plate(1:end-2, 2:end-1) + plate(3:end, 2:end-1) ...
                                    + plate(2:end-1, 1:end-2) + plate(2:end-1, 3:end));
end
signal = sin((1:2^18) * 0.01) + cos((1:2^18) .^ 1.1);
for turn = 1:25
  signal = real(ifft(fft(signal) .* exp(-(1:2^18) / 2^17)));
end
a = reshape(mod((1:500^2) * 7919, 1013), 500, 500) + 5000 * eye(500);
for turn = 1:12
  x = a \ ones(500, 1);
end
total = 0; k = 12345;
for i = 1:400000
  k = mod(k * 1103 + 12345, 65536);
  if k > 30000
    total = total + sqrt(k);
  end
end
printf("%.6f %.6f %.6f %.6f\n", sum(plate(:)), signal(7), sum(x), total);
