-- Sieve, bodies, strings, and queens on a board: four phases.
local function sieve(n)
  local flags, count = {}, 0
  for i = 2, n do flags[i] = true end
  for i = 2, n do
    if flags[i] then
      count = count + 1
      for j = i * i, n, i do flags[j] = false end
    end
  end
  return count
end

local function bodies(count, turns)
  local list = {}
  for i = 1, count do
    list[i] = {x = i * 1.7 % 5, y = i * 2.3 % 7, vx = 0.01 * i, vy = -0.02 * i, mass = 1 + i % 3}
  end
  for _ = 1, turns do
    for _, a in ipairs(list) do
      for _, b in ipairs(list) do
        local dx, dy = b.x - a.x, b.y - a.y
        local pull = 1e-4 * b.mass / (dx * dx + dy * dy + 0.1)
        a.vx, a.vy = a.vx + dx * pull, a.vy + dy * pull
      end
    end
    for _, a in ipairs(list) do a.x, a.y = a.x + a.vx, a.y + a.vy end
  end
  return list[1].x
end

local function strings(lines)
  local made = {}
  for i = 1, lines do made[i] = string.format("%06d:%d", i * 7919 % 100003, i % 977) end
  table.sort(made)
  return #table.concat(made, "-"):gsub("00", "")
end

local function queens(n, row, columns, left, right)
  if row > n then return 1 end
  local found = 0
  for c = 1, n do
    if not columns[c] and not left[row + c] and not right[row - c + n] then
      columns[c], left[row + c], right[row - c + n] = true, true, true
      found = found + queens(n, row + 1, columns, left, right)
      columns[c], left[row + c], right[row - c + n] = nil, nil, nil
    end
  end
  return found
end

local size = tonumber(arg and arg[1] or "1")
print(sieve(3000000 * size), bodies(12, 6000 * size), strings(300000 * size), queens(9, 1, {}, {}, {}))
